# The program alone in an image: a static binary, certificates, and an empty folder for what
# `streamer local` keeps. No shell, no root, nothing that needs to be written to.
#
#   docker build -t telemetrylake/streamer .
#
# builds it with a Go image from a registry. Where there is none, or to ship a binary that was
# built and tested outside, the same image without any base:
#
#   testenv/docker/rootfs.sh bin/image && docker build --target prebuilt -t telemetrylake/streamer -f Dockerfile bin/image
#
# The default is that of testenv/versions.env; a test compares them.
ARG GO_IMAGE=golang:1.26-bookworm

# It comes first: a classic builder makes every stage before the one that is asked for.
FROM scratch AS prebuilt
COPY root /
COPY --chown=65532:65532 empty /data
COPY --chown=65532:65532 empty /tmp
ENV PATH=/ HOME=/data
WORKDIR /
USER 65532:65532
ENTRYPOINT ["/streamer"]

FROM ${GO_IMAGE} AS build
WORKDIR /src
# Modules change less often than sources.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN testenv/docker/rootfs.sh /image

FROM scratch AS streamer
COPY --from=build /image/root /
COPY --from=build --chown=65532:65532 /image/empty /data
COPY --from=build --chown=65532:65532 /image/empty /tmp
ENV PATH=/ HOME=/data
WORKDIR /
USER 65532:65532
ENTRYPOINT ["/streamer"]
