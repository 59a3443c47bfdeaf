#!/usr/bin/env bash
# Makes a Docker engine answer on this machine: installs what is missing, starts dockerd when none answers.
# Run as root. Does not build the sandbox image: that is `agentgym sandbox build`.
set -euo pipefail

log=/var/log/agentgym-dockerd.log
deadline_s=${DOCKER_DEADLINE_S:-90}

engine_answers() {
  timeout 5 docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

install_missing() {
  local missing=()
  command -v dockerd >/dev/null || missing+=(docker.io)
  command -v docker >/dev/null || missing+=(docker.io)
  command -v iptables >/dev/null || missing+=(iptables)
  command -v busybox >/dev/null || missing+=(busybox-static) # for images of the tests' own
  command -v debootstrap >/dev/null || missing+=(debootstrap)
  command -v ssh >/dev/null || missing+=(openssh-client)
  command -v sshd >/dev/null || missing+=(openssh-server) # of the tests' own engines, reached over ssh and TLS
  command -v openssl >/dev/null || missing+=(openssl)
  if ((${#missing[@]})); then
    echo "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  fi
}

start_engine() {
  if pidof dockerd >/dev/null; then
    echo "dockerd runs but does not answer yet"
    return
  fi
  echo "starting dockerd, log in $log"
  rm -f /var/run/docker.pid
  setsid --fork dockerd >"$log" 2>&1 </dev/null
}

wait_for_engine() {
  local end=$((SECONDS + deadline_s))
  until engine_answers; do
    if ((SECONDS >= end)); then
      echo "no Docker engine answered within $deadline_s s; the end of $log:" >&2
      tail -n 40 "$log" >&2 || true
      exit 1
    fi
    sleep 0.5
  done
}

export PATH="$PATH:/usr/sbin:/sbin"
install_missing
engine_answers || { start_engine && wait_for_engine; }
echo "Docker engine $(docker version --format '{{.Server.Version}}') answers"
