#!/usr/bin/env bash
# Installs the Chromium that the tests of the page drive. Run as root.
set -euo pipefail

if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && ! command -v google-chrome >/dev/null; then
  echo "installing chromium"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
fi
"$(command -v chromium || command -v chromium-browser || command -v google-chrome)" --version
