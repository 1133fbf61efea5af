package client

import "github.com/errand-run/errand/messages/errand/v1/errandv1connect"

// Services are the generated clients of what a node serves.
type Services struct {
	Runs   errandv1connect.RunServiceClient
	Nodes  errandv1connect.NodeServiceClient
	Images errandv1connect.ImageServiceClient
}
