package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

type versionView struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the version of errand",
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(*cobra.Command, []string) error { return a.printVersion() },
	}
}

func (a *app) printVersion() error {
	view := currentVersion()
	return a.print(view, func() error {
		commit := ""
		if view.Commit != "" {
			commit = " (" + view.Commit + ")"
		}
		_, err := fmt.Fprintf(a.stdout, "errand %s%s %s %s\n", view.Version, commit, view.Go, view.Platform)
		return err
	})
}

func currentVersion() versionView {
	view := versionView{Version: Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return view
	}
	if view.Version == "" {
		view.Version = info.Main.Version
	}
	if view.Version == "" {
		view.Version = "(devel)"
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			view.Commit = setting.Value[:min(len(setting.Value), 12)]
		}
	}
	return view
}
