package store

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/records"
)

// The limits of a store.
const (
	// FlightsMax bounds how many flights of transactions that write are under way at a
	// time, so that who comes while one is on a long way need not wait for it; the way to
	// an embedded store is short, and there one flight that takes all who come meanwhile
	// is answered sooner than several that share the work. AloneMax bounds how many are
	// under way beside them of those that share none.
	FlightsMax         = 2
	FlightsEmbeddedMax = 1
	AloneMax           = 16
	// QueuedMax bounds how many transactions wait to be sent; what comes beyond is
	// answered as unavailable.
	QueuedMax = 1 << 16
	// ReadsMax bounds how many reads are under way at a time: of Do, and as many of Txn.
	ReadsMax = 64
	// OpTimeout is how long a transaction may take, waiting included. Only a read of Txn
	// may wait longer, behind others that the store answers.
	OpTimeout = 5 * time.Second
	// OpenTimeout is how long a store that is reached over the network may take to
	// answer for the first time.
	OpenTimeout = 10 * time.Second
	// OpenEmbeddedTimeout is how long the embedded store may take. It reads its whole
	// file first, and a busy machine with much history needs far more than a call: who
	// gives up then gives up at each start. One that can not work says so long before.
	OpenEmbeddedTimeout = 4 * time.Minute
	// CloseTimeout is how long Close waits for what is under way, all in all.
	CloseTimeout = 10 * time.Second

	// sendMin is how much of its time a transaction must have left to be sent: with
	// less its outcome would be unknown, where it is certain without.
	sendMin = 100 * time.Millisecond
	// readAttemptTimeout bounds one try of a read, so that a silent server leaves
	// time for another.
	readAttemptTimeout = 2 * time.Second
	retryBackoffMin    = 25 * time.Millisecond
	retryBackoffMax    = time.Second
	// drainTimeout is how long Close lets transactions that were sent finish.
	drainTimeout = 2 * time.Second
)

// Config says where the store is.
type Config struct {
	// Endpoints are the addresses of an etcd cluster, as host:port or with a
	// scheme. Without any the store is embedded.
	Endpoints []string
	// CertFile and KeyFile are this client's certificate, CAFile the authorities
	// that the servers' certificates must come from. All are paths of PEM files.
	CertFile, KeyFile, CAFile string
	// Username and Password are optional. Neither is ever logged.
	Username, Password string
	// DataDir is the directory of an embedded store, of nothing else and of nobody
	// else: it is created with mode 0700.
	DataDir string
	// QuotaBytes is the most that the file of an embedded store may grow to, 0 is
	// QuotaDefault. The last tenth of it is for the end of what runs; at its end the
	// store takes no writes, and begins again only with a larger quota.
	QuotaBytes int64
	// Log is where the store and the server in it write; nil is silent.
	Log *zap.Logger
	// Metrics registers the store's metrics; nil leaves them out.
	Metrics prometheus.Registerer
}

// openTimeout is how long Open may take.
func (c *Config) openTimeout() time.Duration {
	if len(c.Endpoints) == 0 {
		return OpenEmbeddedTimeout
	}
	return OpenTimeout
}

func (c *Config) validate() error {
	if c.QuotaBytes < 0 || len(c.Endpoints) > 0 && c.QuotaBytes > 0 {
		return records.Errorf(records.ClassInvalid, "store: a quota is for an embedded store and above 0")
	}
	if len(c.Endpoints) == 0 {
		if c.DataDir == "" {
			return records.Errorf(records.ClassInvalid, "store: neither endpoints nor a data directory")
		}
		if c.CertFile != "" || c.KeyFile != "" || c.CAFile != "" || c.Username != "" {
			return records.Errorf(records.ClassInvalid, "store: certificates and a user name are for endpoints, the embedded store has none")
		}
	}
	for _, endpoint := range c.Endpoints {
		if strings.TrimSpace(endpoint) == "" {
			return records.Errorf(records.ClassInvalid, "store: an empty endpoint in %q", c.Endpoints)
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return records.Errorf(records.ClassInvalid, "store: a certificate and its key go together")
	}
	if c.Username == "" && c.Password != "" {
		return records.Errorf(records.ClassInvalid, "store: a password without a user name")
	}
	return nil
}

// tlsConfig returns nil when no file is named: then an https endpoint is checked
// against the system's authorities.
func (c *Config) tlsConfig() (*tls.Config, error) {
	if c.CertFile == "" && c.CAFile == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certificate %s and key %s: %w", c.CertFile, c.KeyFile, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("authorities %s: %w", c.CAFile, errors.New("no certificate in it"))
		}
	}
	return config, nil
}
