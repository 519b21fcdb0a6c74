package containers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/localstack"
	"github.com/testcontainers/testcontainers-go/wait"
)

// others are what to start where one kind is not to be had.
const others = "without Docker, testenv/strangers/install.sh installs LocalStack, MiniStack and moto as packages (kinds localstack, ministack, moto), " +
	"streamer local is an AWS on this machine (kind running, after . FOLDER/env), and kind embedded needs nothing"

const localstackPort = "4566/tcp"

// startContainer runs LocalStack's image, published on loopback, on the engine that answers.
func startContainer(ctx context.Context, answers func(context.Context) error) (_ *AWS, stop func() error, err error) {
	image, err := pinned("LOCALSTACK_IMAGE")
	if err != nil {
		return nil, nil, err
	}
	if err := answers(ctx); err != nil {
		return nil, nil, fmt.Errorf("no Docker engine answers: %w; start one or set DOCKER_HOST; %s", err, others)
	}
	env := map[string]string{}
	for _, v := range localstackSettings() {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	c, err := localstack.Run(ctx, image,
		testcontainers.WithEnv(env),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			// It starts no containers, so it needs no hand on the engine.
			h.Binds = nil
			h.PortBindings = network.PortMap{network.MustParsePort(localstackPort): {{HostIP: netip.AddrFrom4([4]byte{127, 0, 0, 1})}}}
		}),
		testcontainers.WithWaitStrategyAndDeadline(startWait, wait.ForHTTP(localstackHealth).WithPort(localstackPort).WithStartupTimeout(startWait)),
	)
	if c != nil {
		stop = func() error { return testcontainers.TerminateContainer(c) }
	}
	if err != nil {
		return nil, stop, fmt.Errorf("run %s: %w; %s", image, err, others)
	}
	endpoint, err := c.PortEndpoint(ctx, localstackPort, "http")
	if err != nil {
		return nil, stop, err
	}
	a := newAWS(Container, endpoint, localStackServices)
	a.Name, a.Version, err = identify(ctx, endpoint)
	return a, stop, err
}

// dockerAnswers fails where testcontainers would find no engine, for which it panics.
func dockerAnswers(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	p, err := testcontainers.NewDockerProvider()
	if err != nil {
		return err
	}
	return errors.Join(p.Health(ctx), p.Close())
}
