#!/bin/bash
# Builds and runs the programs of `cargo xtask bench first-lines`.
#
#   recipe.sh PROGRAM build             gets the sources, builds with -g -O2, makes the input
#   recipe.sh PROGRAM version           prints what was built
#   recipe.sh PROGRAM run [PREFIX...]   runs the workload; PREFIX starts the watched program, as `cairn heap -o FILE`
#   recipe.sh PROGRAM memray            records a Python program with memray and prints its summary; else nothing
#
# The working directory is the program's own, and everything is written there. Sources are Debian's
# (`apt-get source`, so any Debian mirror will do) or of crates.io. A build that exists is not repeated.
set -eu -o pipefail
export LC_ALL=C.UTF-8 TZ=UTC DEBIAN_FRONTEND=noninteractive
here=$(cd "$(dirname "$0")" && pwd)
jobs=${FIRST_LINES_JOBS:-$(nproc)}

# Installs the missing ones of these Debian packages.
packages() {
  local missing=()
  for name in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
  done
  [ ${#missing[@]} = 0 ] && return
  echo "installs: ${missing[*]}" >&2
  apt-get update -qq >&2 || true
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

# Unpacks a Debian source package into ./source and writes its version into ./version. The lists of
# source packages are separate ones: the machine's own are left as they are.
debian_source() {
  [ -e version ] && return
  packages dpkg-dev
  mkdir -p apt/lists/partial apt/cache/archives/partial apt/sources
  for list in /etc/apt/sources.list.d/*.sources; do
    [ -e "$list" ] && sed 's/^Types:.*/Types: deb-src/' "$list" > "apt/sources/${list##*/}"
  done
  for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -e "$list" ] && sed -n 's/^deb /deb-src /p' "$list" > "apt/sources/$(basename "$list" .list).list"
  done
  local options=(-o "Dir::State::lists=$PWD/apt/lists" -o "Dir::Cache=$PWD/apt/cache"
    -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$PWD/apt/sources" -o APT::Sandbox::User=root)
  apt-get -qq "${options[@]}" update >&2 || true
  rm -rf source unpacked && mkdir unpacked
  # A mirror may list an update that it does not hold: then an older version does.
  local versions
  versions=$(apt-cache "${options[@]}" showsrc "$1" | sed -n 's/^Version: //p' | sort -u --reverse --version-sort)
  for each in $versions; do
    (cd unpacked && apt-get -qq "${options[@]}" source "$1=$each" >&2) && break
  done
  mv "$(find unpacked -mindepth 1 -maxdepth 1 -type d)" source
  (cd source && dpkg-parsechangelog -S Version) > version
}

# Installs a program of crates.io into ./bin, with line tables and symbols, and writes its version.
crate() {
  [ -e version ] && return
  CARGO_PROFILE_RELEASE_DEBUG=1 CARGO_PROFILE_RELEASE_STRIP=none CARGO_PROFILE_RELEASE_LTO=off \
    CARGO_PROFILE_RELEASE_OPT_LEVEL=2 CARGO_TARGET_DIR=$PWD/build \
    cargo install --quiet --locked --jobs "$jobs" --root "$PWD" --version "$2" "$1" "${@:3}" >&2
  rm -rf build
  echo "$2" > version
}

# Waits until a server's socket or port is there, at most 30 seconds.
wait_for() {
  for _ in $(seq 300); do "$@" > /dev/null 2>&1 && return; sleep 0.1; done
  echo "the server did not start: $*" >&2
  return 1
}

build() { :; }
version() { cat version; }
# For Python programs alone.
memray() { :; }

# One command, so that a change of this file does not disturb a run of it.
main() {
  program=$1 action=$2
  shift 2
  # shellcheck source=/dev/null
  . "$here/programs/$program.sh"
  "$action" "$@"
  exit
}
main "$@"
