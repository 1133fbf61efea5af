package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	// completionTimeout is what a person waits at a prompt without noticing.
	completionTimeout = time.Second
	completionRuns    = 100
)

func anyRun(errandv1.Status) bool           { return true }
func activeRun(status errandv1.Status) bool { return !terminal(status) }
func anyNode(*errandv1.Node) bool           { return true }

// connectAtPrompt is connect with a context that lasts as long as a prompt may take; who
// got no error calls cancel.
func (a *app) connectAtPrompt(cmd *cobra.Command) (*connection, context.Context, context.CancelFunc, error) {
	c, err := a.connect()
	if err != nil {
		return nil, nil, nil, err
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	return c, ctx, cancel, nil
}

// completeImage offers the images of the node for the one argument before --, as the node
// writes them and as people do.
func (a *app) completeImage(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, ctx, cancel, err := a.connectAtPrompt(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer cancel()
	images, _ := c.once.Images(ctx) // without a node there are none
	var found []cobra.Completion
	for _, image := range images {
		names := []string{image.GetName()}
		if named, err := reference.ParseNormalizedNamed(names[0]); err == nil && reference.FamiliarString(named) != names[0] {
			names = append(names, reference.FamiliarString(named))
		}
		for _, name := range names {
			if strings.HasPrefix(name, typed) {
				found = append(found, name)
			}
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeNode offers the nodes that a command can be about, as completeRun does.
func (a *app) completeNode(wanted func(*errandv1.Node) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, ctx, cancel, err := a.connectAtPrompt(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer cancel()
		nodes, err := c.once.Nodes(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []cobra.Completion
		for _, node := range nodes {
			if id := node.GetId(); wanted(node) && strings.HasPrefix(id, typed) {
				found = append(found, cobra.CompletionWithDesc(id, viewNode(node).stateText()))
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeRun offers the ids of the runs that a command can be about. Without a
// node it offers nothing: a shell prompt is no place for errors.
func (a *app) completeRun(wanted func(errandv1.Status) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if cmd.Args != nil && cmd.Args(cmd, append(slices.Clone(args), "r")) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, ctx, cancel, err := a.connectAtPrompt(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer cancel()
		runs, err := a.list(ctx, c, &errandv1.ListRunsRequest{}, completionRuns, time.Time{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []cobra.Completion
		for _, run := range runs {
			id := run.GetId()
			if slices.Contains(args, id) || !wanted(run.GetStatus()) {
				continue
			}
			if !strings.HasPrefix(id, typed) {
				// A terminal shows the last part of an id alone.
				id = id[strings.LastIndexByte(id, '.')+1:]
			}
			if !strings.HasPrefix(id, typed) || slices.Contains(args, id) {
				continue
			}
			view := viewRun(run)
			about := cellText(strings.TrimSpace(view.Status + " " + view.Name))
			found = append(found, cobra.CompletionWithDesc(id, about))
		}
		return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}
