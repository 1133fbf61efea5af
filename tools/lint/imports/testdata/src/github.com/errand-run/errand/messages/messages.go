package messages
