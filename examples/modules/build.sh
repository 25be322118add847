#!/bin/sh
# Builds the modules that `host` loads: build.sh DIRECTORY [windows|pdb]
#
# For Windows by mingw, with DWARF, or by clang and lld-link, with PDB files. There foo and qux ask
# for one place, as those of Linux get it.
# FLAGS are further words for the compiler.
set -eu
sources=$(dirname "$0")
mkdir -p "$1"
for name in foo测试 bar qux; do
    base=0x6e5f0000
    [ $name != bar ] || base=0x6d5f0000
    if [ "${2:-linux}" = pdb ]; then
        "${CLANG:-clang++}" --target=x86_64-pc-windows-msvc -O2 -g -gcodeview ${FLAGS:-} -c -o "$1/$name.obj" "$sources/$name.cpp"
        "${LLD_LINK:-lld-link}" /dll /noentry /nodefaultlib /debug /base:$base "/export:$name" \
            "/out:$1/$name.dll" "/pdb:$1/$name.pdb" "/pdbaltpath:$name.pdb" "$1/$name.obj"
        rm "$1/$name.obj" "$1/$name.lib"
    elif [ "${2:-linux}" = windows ]; then
        "${CXX:-x86_64-w64-mingw32-g++}" -O2 -g ${FLAGS:-} -shared -static-libgcc -nostdlib -Wl,--build-id,--entry=0,--image-base=$base \
            -o "$1/$name.dll" "$sources/$name.cpp"
    else
        "${CXX:-c++}" -O2 -g ${FLAGS:-} -fPIC -shared -Wl,--build-id -o "$1/lib$name.so" "$sources/$name.cpp"
    fi
done
