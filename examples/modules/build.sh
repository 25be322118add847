#!/bin/sh
# Builds the modules that `host` loads: build.sh DIRECTORY [windows]
#
# For Windows by mingw. There foo and qux ask for one place, as those of Linux get it.
set -eu
sources=$(dirname "$0")
mkdir -p "$1"
for name in foo测试 bar qux; do
    if [ "${2:-linux}" = windows ]; then
        base=0x6e5f0000
        [ $name != bar ] || base=0x6d5f0000
        "${CXX:-x86_64-w64-mingw32-g++}" -O2 -g -shared -static-libgcc -nostdlib -Wl,--build-id,--entry=0,--image-base=$base \
            -o "$1/$name.dll" "$sources/$name.cpp"
    else
        "${CXX:-c++}" -O2 -g -fPIC -shared -Wl,--build-id -o "$1/lib$name.so" "$sources/$name.cpp"
    fi
done
