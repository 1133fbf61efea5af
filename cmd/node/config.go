package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"

	"github.com/errand-run/errand/boot"
	"github.com/errand-run/errand/nodes"
)

// configFileDefault is read when it exists and --config was not given.
const configFileDefault = "/etc/errand/node.toml"

// What --guard may be.
const (
	guardAuto = "auto"
	guardUnit = "unit"
)

// envPrefix and a flag's name in capitals make the name of its variable.
const envPrefix = "ERRAND_"

// knobs defines every flag; each can also be given as ERRAND_<NAME> and as a key
// of the TOML file.
func knobs(asked *request) *pflag.FlagSet {
	config, standard := &asked.config, nodes.DefaultSession()
	flags := pflag.NewFlagSet("errand-node", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.StringVar(&config.DataDir, "data", boot.DataDirDefault, "the directory of everything this node keeps")
	flags.StringVar(&config.RuntimeDir, "runtime-dir", "", "a folder in memory that outlives the daemon; /run/errand by default, as another user than root one of the user's own")
	flags.StringVar(&config.Listen, "listen", boot.ListenDefault, "the address of the API, on loopback")
	flags.StringVar(&config.Name, "name", "", "the node's name; the host name by default")
	flags.BoolVar(&config.Dev, "dev", false, "for trying out: no token, and the process and null drivers too")
	flags.StringSliceVar(&config.Drivers, "drivers", []string{boot.DriversAuto}, "sandbox drivers, the default one first: containerd, process, null; or auto")
	flags.StringVar(&config.Containerd, "containerd", boot.ContainerdAuto, "auto (a running one, else a private one), private, or the path of a socket")
	flags.StringVar(&config.ContainerdNamespace, "containerd-namespace", "errand", "the containerd namespace of our containers and images")
	flags.StringVar(&config.RegistryAuth, "registry-auth", "", "a docker config file with credentials for registries; none by default")
	flags.StringVar(&config.RegistryCA, "registry-ca", "", "PEM file of authorities that sign registries, beside those of the system")
	flags.StringSliceVar(&config.RegistryPlain, "registry-plain", nil, "registries, as host:port, that are spoken with unencrypted; those on loopback always are")
	flags.DurationVar(&config.ImageMaxAge, "image-max-age", boot.ImageMaxAgeDefault, "how long a pulled image is kept that nothing uses, as in 720h; negative is for ever")
	flags.Int64Var(&config.ImageMaxBytes, "image-max-bytes", 0, "what pulled images may take, in bytes; a quarter of their disk by default, negative is no bound")
	flags.Int32Var(&config.ImagePulls, "image-pulls", boot.ImagePullsDefault, "how many images are pulled at a time (1 to 64)")
	flags.Int64Var(&config.StoreMaxBytes, "store-max-bytes", 0, "the most that the embedded store's file may take, in bytes (16 MiB to 64 GiB); 8 GiB by default")
	flags.StringSliceVar(&config.EtcdEndpoints, "etcd-endpoints", nil, "an outside etcd, as host:port or URLs; the embedded one by default")
	flags.StringVar(&config.EtcdCA, "etcd-ca", "", "PEM file of the authority that signed etcd's certificate")
	flags.StringVar(&config.EtcdCert, "etcd-cert", "", "PEM file of our certificate for etcd")
	flags.StringVar(&config.EtcdKey, "etcd-key", "", "PEM file of our key for etcd")
	flags.DurationVar(&config.Session.Lease, "session-lease", standard.Lease, "with an outside etcd: how long the node's session lasts without being renewed")
	flags.DurationVar(&config.Session.Renew, "session-renew", standard.Renew, "how often the session is renewed")
	flags.DurationVar(&config.Session.Margin, "session-margin", standard.Margin, "how long before the session's end everything that runs here is killed")
	flags.DurationVar(&config.Session.KillBudget, "kill-budget", standard.KillBudget, "how long such a kill may take; others wait that long before they give a run up")
	flags.DurationVar(&config.Session.RestartMax, "restart-max", standard.RestartMax, "with an outside etcd: how long the session lasts while the daemon is restarted on purpose; what runs goes on until a margin before")
	flags.StringVar(&asked.guard, "guard", guardAuto, "with an outside etcd: auto (a guard is started if none is at work) or unit (somebody else starts errand-node guard)")
	flags.StringVar(&config.EtcdPrefix, "etcd-prefix", "/errand/", "where all keys of the cluster live")
	flags.Int32Var(&config.Shards, "shards", 64, "number of shards, fixed when the cluster is created (1 to 4096)")
	flags.Int64Var(&config.SandboxesMax, "sandboxes-max", boot.SandboxesMaxDefault, "the most sandboxes at a time (1 to 100000)")
	flags.Int64Var(&config.CPUMillis, "cpu-millis", 0, "thousandths of a core that runs may reserve; the machine's by default")
	flags.Int64Var(&config.MemoryBytes, "memory-bytes", 0, "bytes of memory that runs may reserve; the machine's by default")
	flags.Int64Var(&config.LogBytes, "log-bytes", boot.LogBytesDefault, "the most that is kept of one attempt's log, in bytes, newest kept")
	flags.StringVar(&config.SandboxInit, "sandbox-init", "", "path of the sandbox-init binary; the embedded one by default")
	flags.StringVar(&config.AcceptLossOf, "accept-loss-of", "", "for one start: store or journal; what was lost is given up and what still runs of it is stopped")
	flags.StringVar(&asked.logLevel, "log-level", "info", "debug, info, warn or error")
	return flags
}

// request is what the command line asks for.
type request struct {
	config boot.Config
	// logLevel is debug, info, warn or error.
	logLevel string
	// guard is guardAuto or guardUnit.
	guard   string
	help    string
	version bool
}

// complete fills the defaults in and refuses what can not be.
func (r *request) complete() error {
	complete, err := r.config.Complete()
	if complete.Listen == boot.ListenNone {
		err = errors.Join(err, fmt.Errorf("listen %q: nobody could reach a daemon without an address", complete.Listen))
	}
	if _, levelErr := zapcore.ParseLevel(r.logLevel); levelErr != nil {
		err = errors.Join(err, fmt.Errorf("log-level %q: must be debug, info, warn or error", r.logLevel))
	}
	r.config = complete
	switch r.guard {
	case guardAuto:
		self, selfErr := os.Executable()
		r.config.GuardBinary = self
		err = errors.Join(err, selfErr)
	case guardUnit:
	default:
		err = errors.Join(err, fmt.Errorf("guard %q: must be auto or unit", r.guard))
	}
	return err
}

// parse reads the flags, the environment and the file, in this order of
// precedence.
func parse(args, environment []string, more ...func(*pflag.FlagSet)) (request, error) {
	var asked request
	flags := knobs(&asked)
	file := flags.String("config", "", "a TOML file with the same names; "+configFileDefault+" if it exists")
	help := flags.BoolP("help", "h", false, "show this help")
	flags.BoolVar(&asked.version, "version", false, "print the version")
	for _, add := range more {
		add(flags)
	}
	if err := flags.Parse(args); err != nil {
		return asked, plain(err)
	}
	if *help {
		asked.help = usage(flags)
		return asked, nil
	}
	if rest := flags.Args(); len(rest) == 1 && rest[0] == "version" {
		asked.version = true // as errand takes it
		return asked, nil
	} else if len(rest) > 0 {
		return asked, fmt.Errorf("unexpected argument %q", rest[0])
	}
	if err := fromEnvironment(flags, environment); err != nil {
		return asked, err
	}
	if err := fromFile(flags, *file); err != nil {
		return asked, err
	}
	return asked, refuseZero(flags)
}

// refuseZero refuses a number that was given as 0: inside a boot.Config that
// stands for the default, which is not what somebody who writes it means.
func refuseZero(flags *pflag.FlagSet) error {
	var problems []error
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && flag.Value.String() == "0" {
			problems = append(problems, fmt.Errorf("%s 0: must be above 0", flag.Name))
		}
	})
	return errors.Join(problems...)
}

// fromEnvironment sets every flag that the command line did not.
func fromEnvironment(flags *pflag.FlagSet, environment []string) error {
	var problems []error
	flags.VisitAll(func(flag *pflag.Flag) {
		name := envName(flag.Name)
		i := slices.IndexFunc(environment, func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
		if i < 0 || flag.Changed || notInFile[flag.Name] && flag.Name != "config" {
			return
		}
		value := strings.TrimPrefix(environment[i], name+"=")
		if err := setFlag(flags, flag.Name, value); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
	})
	return errors.Join(problems...)
}

// notInFile are the flags that make no sense in a file; but for config, nor in
// the environment: a loss is accepted once and not for ever.
var notInFile = map[string]bool{"config": true, "help": true, "version": true, "accept-loss-of": true, "detach": true, "until-idle": true}

// fromFile sets every flag that neither the command line nor the environment
// did. A key that is no flag is refused: it would be a setting that silently does
// nothing.
func fromFile(flags *pflag.FlagSet, path string) error {
	if path == "" {
		path = configFileDefault
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	values := map[string]any{}
	if _, err := toml.DecodeFile(path, &values); err != nil {
		return fmt.Errorf("config file %s: %w", path, err)
	}
	var problems []error
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		flag := flags.Lookup(name)
		if flag == nil || notInFile[name] {
			problems = append(problems, fmt.Errorf("config file %s: unknown key %q", path, name))
			continue
		}
		if flag.Changed {
			continue
		}
		text, err := flagText(flag, values[name])
		if err == nil {
			err = setFlag(flags, name, text)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("config file %s: %s: %w", path, name, err))
		}
	}
	return errors.Join(problems...)
}

// flagText writes a TOML value as a flag's value is written. A flag takes its own kind
// of value, or a string as one would write it on the command line.
func flagText(flag *pflag.Flag, value any) (string, error) {
	if text, ok := value.(string); ok {
		return text, nil
	}
	switch kind := flag.Value.Type(); kind {
	case "bool":
		if truth, ok := value.(bool); ok {
			return strconv.FormatBool(truth), nil
		}
		return "", errors.New("must be true or false")
	case "int32", "int64":
		if number, ok := value.(int64); ok {
			return strconv.FormatInt(number, 10), nil
		}
		return "", errors.New("must be a whole number")
	case "stringSlice":
		list, ok := value.([]any)
		texts := make([]string, len(list))
		for i, element := range list {
			text, isText := element.(string)
			texts[i], ok = text, ok && isText
		}
		if ok {
			return strings.Join(texts, ","), nil
		}
		return "", errors.New("must be a list of strings")
	default:
		return "", errors.New("must be a string")
	}
}

// setFlag sets a flag; its error repeats neither the flag's name nor Go's words.
func setFlag(flags *pflag.FlagSet, name, text string) error {
	var bad *pflag.InvalidValueError
	err := flags.Set(name, text)
	if errors.As(err, &bad) {
		return fmt.Errorf("invalid value %q: %w", text, plain(errors.Unwrap(bad)))
	}
	return err
}

// plain says what is wrong with a number or a truth value in plain words.
func plain(err error) error {
	var number *strconv.NumError
	if !errors.As(err, &number) {
		return err
	}
	why := "must be a whole number"
	switch {
	case number.Func == "ParseBool":
		why = "must be true or false"
	case errors.Is(number, strconv.ErrRange):
		why = "is out of range"
	}
	return errors.New(strings.TrimSuffix(err.Error(), number.Error()) + why)
}

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func usage(flags *pflag.FlagSet) string {
	return `errand-node runs commands in sandboxes on this machine.

Usage: errand-node [flags]
       errand-node guard [flags]   kill what the node runs once its session is over

Each flag can also be given as a variable (--log-level as ERRAND_LOG_LEVEL) or as
a key of a TOML file; a flag outranks a variable, a variable the file.

Flags:
` + flags.FlagUsages() + `
To try it out: errand-node --dev --data /tmp/errand
`
}
