package api

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/distribution/reference"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// The bounds of a request. A run's record and its assignment, each with the
// spec, travel in one transaction, and a transaction is at most 1.5 MiB: twice
// specBytesMax and the rest of the record fit.
const (
	nameRunesMax        = 128
	byRunesMax          = 128
	labelsMax           = 64
	labelKeyBytesMax    = 63
	labelValueBytesMax  = 255
	labelsBytesMax      = 16 << 10
	keyBytesMax         = 255
	imageBytesMax       = 512
	credentialBytesMax  = 32 << 10
	commandArgsMax      = 4096
	commandBytesMax     = 128 << 10
	envVariablesMax     = 4096
	envKeyBytesMax      = 256
	envBytesMax         = 512 << 10
	specBytesMax        = 640 << 10
	pathBytesMax        = 4095
	userBytesMax        = 128
	cpuMillisMin        = 10
	cpuMillisMax        = 1_000_000
	memoryBytesMin      = 6 << 20
	memoryBytesMax      = 1 << 50
	pidsMax             = 1 << 22
	timeoutMax          = 366 * 24 * time.Hour
	startDeadlineMax    = 366 * 24 * time.Hour
	stopGraceMax        = 24 * time.Hour
	reservedEnvPrefix   = "ERRAND_"
	reservedLabelPrefix = "errand/"
	// execStringBytesMax is the kernel's limit for one argument or one KEY=value of
	// a command, with the zero byte at its end.
	execStringBytesMax = 128 << 10
)

// The drivers that have rules of their own.
const (
	driverContainerd = "containerd"
	driverProcess    = "process"
	driverNull       = "null"
)

var (
	envKeyPattern   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	labelKeyPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`)
	userNamePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*\$?$`)
)

// checker collects violations.
type checker struct {
	violations []Violation
}

func (c *checker) add(field, format string, args ...any) {
	c.violations = append(c.violations, Violation{Field: field, Text: fmt.Sprintf(format, args...)})
}

// text reports bytes that no stored or executed text may hold. It returns false
// if it found any.
func (c *checker) text(field, text string) bool {
	switch {
	case !utf8.ValidString(text):
		c.add(field, "is not UTF-8")
	case strings.IndexByte(text, 0) >= 0:
		c.add(field, "holds a zero byte")
	default:
		return true
	}
	return false
}

func printable(text string) bool {
	return utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// words checks a short text that is shown as it is.
func (c *checker) words(field, text string, runesMax int) {
	if !printable(text) {
		c.add(field, "may only hold printable characters")
	} else if runes := utf8.RuneCountInString(text); runes > runesMax {
		c.add(field, "is %d characters long, the most is %d", runes, runesMax)
	}
}

func (c *checker) labels(field string, labels map[string]string) {
	if len(labels) > labelsMax {
		c.add(field, "are %d, the most is %d", len(labels), labelsMax)
		return
	}
	total := 0
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := labels[key]
		total += len(key) + len(value)
		at := field + "[" + quoteShort(key) + "]"
		switch {
		case len(key) > labelKeyBytesMax:
			c.add(at, "the key is %d bytes long, the most is %d", len(key), labelKeyBytesMax)
		case !labelKeyPattern.MatchString(key):
			c.add(at, "a key is letters, digits and . _ / -, and begins and ends with a letter or digit")
		case strings.HasPrefix(key, reservedLabelPrefix):
			c.add(at, "keys that begin with %s are Errand's own", reservedLabelPrefix)
		}
		switch {
		case len(value) > labelValueBytesMax:
			c.add(at, "the value is %d bytes long, the most is %d", len(value), labelValueBytesMax)
		case !printable(value):
			c.add(at, "the value may only hold printable characters")
		}
	}
	if total > labelsBytesMax {
		c.add(field, "are %d bytes in all, the most is %d", total, labelsBytesMax)
	}
}

func (c *checker) key(key string) {
	if len(key) > keyBytesMax {
		c.add("idempotency_key", "is %d bytes long, the most is %d", len(key), keyBytesMax)
		return
	}
	c.text("idempotency_key", key)
}

// driver returns the driver that is meant.
func (c *checker) driver(driver string, enabled []string) string {
	switch {
	case driver == "" && len(enabled) == 0:
		c.add("spec.driver", "the node has no sandbox driver enabled")
	case driver == "":
		return enabled[0]
	case !slices.Contains(enabled, driver):
		c.add("spec.driver", "%s is not enabled here; enabled: %s", quoteShort(driver), strings.Join(enabled, ", "))
	}
	return driver
}

func (c *checker) image(driver, image string) {
	switch {
	case image == "" && driver == driverContainerd:
		c.add("spec.image", "is missing: the containerd driver needs one")
	case image == "":
	case driver == driverProcess:
		c.add("spec.image", "the process driver runs commands of the host and takes no image: leave it out, or ask for the containerd driver")
	case len(image) > imageBytesMax:
		c.add("spec.image", "is %d bytes long, the most is %d", len(image), imageBytesMax)
	default:
		if _, err := reference.ParseDockerRef(image); err != nil {
			c.add("spec.image", "%s is not an image name: %s", quoteShort(image), err)
		}
	}
}

// imageName checks the name of an image that a call is about.
func (c *checker) imageName(name string) {
	spec := &checker{}
	if spec.image("", name); name == "" {
		spec.add("name", "is missing")
	}
	for _, violation := range spec.violations {
		c.add("name", "%s", violation.Text)
	}
}

// credential checks the form of a secret, and repeats nothing of it.
func (c *checker) credential(credential *errandv1.RegistryCredential) {
	if credential == nil {
		return
	}
	user, token := credential.GetUsername() != "" || credential.GetPassword() != "", credential.GetIdentityToken() != ""
	if user == token {
		c.add("credential", "must be a username and a password, or an identity token")
	}
	if len(credential.GetUsername())+len(credential.GetPassword())+len(credential.GetIdentityToken()) > credentialBytesMax {
		c.add("credential", "is longer than %d bytes", credentialBytesMax)
	}
}

// pull returns the stored form: the default is left out, as records of before have it.
func (c *checker) pull(driver string, pull errandv1.PullPolicy) recordv1.PullPolicy {
	switch {
	case pull == errandv1.PullPolicy_PULL_POLICY_UNSPECIFIED || pull == errandv1.PullPolicy_PULL_POLICY_MISSING:
		return recordv1.PullPolicy_PULL_POLICY_UNSPECIFIED
	case pull != errandv1.PullPolicy_PULL_POLICY_ALWAYS && pull != errandv1.PullPolicy_PULL_POLICY_NEVER:
		c.add("spec.pull", "must be MISSING, ALWAYS or NEVER, is %d", pull)
	case driver == driverProcess || driver == driverNull:
		c.add("spec.pull", "the %s driver uses no image", driver)
	}
	return recordv1.PullPolicy(pull)
}

// readOnlyRoot refuses a wish that only containers can fulfil: a command of the host
// has the host's own root.
func (c *checker) readOnlyRoot(driver string, wanted bool) {
	if wanted && (driver == driverProcess || driver == driverNull) {
		c.add("spec.read_only_root", "the %s driver has no root file system of its own to make read-only", driver)
	}
}

func (c *checker) command(driver string, command []string) {
	if len(command) == 0 {
		if driver == driverProcess {
			c.add("spec.command", "is missing: the process driver has no image to take one from")
		}
		return
	}
	if len(command) > commandArgsMax {
		c.add("spec.command", "has %d parts, the most is %d", len(command), commandArgsMax)
		return
	}
	if command[0] == "" {
		c.add("spec.command[0]", "is empty")
	}
	total := 0
	for i, part := range command {
		total += len(part)
		at := "spec.command[" + strconv.Itoa(i) + "]"
		if c.text(at, part) && len(part)+1 > execStringBytesMax {
			c.add(at, "is %d bytes long, the most is %d", len(part), execStringBytesMax-1)
		}
	}
	if total > commandBytesMax {
		c.add("spec.command", "is %d bytes in all, the most is %d", total, commandBytesMax)
	}
}

func (c *checker) env(env map[string]string) {
	if len(env) > envVariablesMax {
		c.add("spec.env", "has %d variables, the most is %d", len(env), envVariablesMax)
		return
	}
	total := 0
	for _, key := range slices.Sorted(maps.Keys(env)) {
		value := env[key]
		size := len(key) + len(value) + len("=\x00")
		total += size
		at := "spec.env[" + quoteShort(key) + "]"
		switch {
		case len(key) > envKeyBytesMax:
			c.add(at, "the key is %d bytes long, the most is %d", len(key), envKeyBytesMax)
			continue
		case !envKeyPattern.MatchString(key):
			c.add(at, "a key is letters, digits and _, and does not begin with a digit")
			continue
		case strings.HasPrefix(key, reservedEnvPrefix):
			c.add(at, "keys that begin with %s are Errand's own", reservedEnvPrefix)
			continue
		}
		if c.text(at, value) && size > execStringBytesMax {
			c.add(at, "is %d bytes with its key, the most is %d", size, execStringBytesMax)
		}
	}
	if total > envBytesMax {
		c.add("spec.env", "is %d bytes in all, the most is %d", total, envBytesMax)
	}
}

func (c *checker) workingDir(dir string) {
	switch {
	case dir == "" || !c.text("spec.working_dir", dir):
	case len(dir) > pathBytesMax:
		c.add("spec.working_dir", "is %d bytes long, the most is %d", len(dir), pathBytesMax)
	case dir[0] != '/':
		c.add("spec.working_dir", "must be an absolute path, is %s", quoteShort(dir))
	}
}

func (c *checker) user(user string) {
	if user == "" {
		return
	}
	name, group, hasGroup := strings.Cut(user, ":")
	if len(user) > userBytesMax || !validAccount(name) || hasGroup && !validAccount(group) {
		c.add("spec.user", "must be uid, uid:gid, name or name:group, is %s", quoteShort(user))
	}
}

// validAccount tells whether a text is the number or the name of a user or group.
func validAccount(text string) bool {
	if text != "" && text[0] >= '0' && text[0] <= '9' {
		// The highest number means "none" to the kernel.
		id, err := strconv.ParseUint(text, 10, 32)
		return err == nil && id < 1<<32-1
	}
	return userNamePattern.MatchString(text)
}

func (c *checker) resources(spec *errandv1.RunSpec) {
	c.amount("spec.cpu_millis", spec.GetCpuMillis(), cpuMillisMin, cpuMillisMax, milliCores)
	c.amount("spec.memory_bytes", spec.GetMemoryBytes(), memoryBytesMin, memoryBytesMax, byteSize)
	c.amount("spec.pids_limit", spec.GetPidsLimit(), 1, pidsMax, plainNumber)
}

// milliCores writes thousandths of a core as a command line takes them.
func milliCores(amount int64) string { return strconv.FormatInt(amount, 10) + "m" }

func plainNumber(amount int64) string { return strconv.FormatInt(amount, 10) }

// byteSize writes a size in the largest unit that gives a whole number.
func byteSize(amount int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	unit := 0
	for unit < len(units)-1 && amount != 0 && amount%1024 == 0 {
		amount, unit = amount/1024, unit+1
	}
	if amount == 1 && unit == 0 {
		return "1 byte"
	}
	return strconv.FormatInt(amount, 10) + " " + units[unit]
}

func (c *checker) amount(field string, amount, least, most int64, show func(int64) string) {
	switch {
	case amount < 0:
		c.add(field, "must not be below 0, is %s", show(amount))
	case amount > 0 && amount < least:
		c.add(field, "must be at least %s, or 0 for no limit of its own, is %s", show(least), show(amount))
	case amount > most:
		c.add(field, "must be at most %s, is %s", show(most), show(amount))
	}
}

// quotedBytesMax bounds how much of a bad text an error repeats.
const quotedBytesMax = 80

// quoteShort quotes a text so that it is safe in an error, cut if it is long.
func quoteShort(text string) string {
	if len(text) <= quotedBytesMax {
		return strconv.QuoteToGraphic(text)
	}
	return strconv.QuoteToGraphic(strings.ToValidUTF8(text[:quotedBytesMax], "")) + "..."
}
