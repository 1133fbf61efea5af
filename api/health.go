package api

import (
	"io"
	"net/http"
	"strings"
)

// healthz answers as long as the process serves.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok\n") }

// readyz answers whether runs would be taken, and if not, why, a line for each
// reason.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	if reasons := s.unready(); len(reasons) > 0 {
		plain(w, http.StatusServiceUnavailable, "not ready:\n"+strings.Join(reasons, "\n")+"\n")
		return
	}
	plain(w, http.StatusOK, "ready\n")
}

// unready is what keeps the node from taking runs, in words.
func (s *Server) unready() []string {
	var reasons []string
	if s.stopping.Err() != nil {
		reasons = append(reasons, errStopping.Error())
	}
	if s.config.Ready != nil {
		reasons = append(reasons, s.config.Ready()...)
	}
	return reasons
}

// because is what an error says of a node that has trouble; nothing of one that is well.
func (s *Server) because() string {
	if reasons := s.unready(); len(reasons) > 0 {
		return " (" + strings.Join(reasons, "; ") + ")"
	}
	return ""
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// The peer has gone if this fails.
	_, _ = io.WriteString(w, text)
}
