#!/usr/bin/env bash
# Installs what the bubblewrap sandbox needs, and what its tests need to become an ordinary user. Run as root.
set -euo pipefail

missing=()
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v setpriv >/dev/null || missing+=(util-linux)
ldconfig -p | grep -q 'libseccomp\.so\.2' || missing+=(libseccomp2)
if ((${#missing[@]})); then
  echo "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
bwrap --version
