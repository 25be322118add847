#!/bin/sh
# Builds the modules that `host` loads: build.sh DIRECTORY
set -eu
sources=$(dirname "$0")
mkdir -p "$1"
for name in foo测试 bar qux; do
    "${CXX:-c++}" -O2 -g -fPIC -shared -Wl,--build-id -o "$1/lib$name.so" "$sources/$name.cpp"
done
