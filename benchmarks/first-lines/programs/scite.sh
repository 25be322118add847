# SciTE (GTK 3): opens C++ and Python files in a window of a virtual screen, searches, folds, exports, and quits.
build() {
  packages libgtk-3-dev liblua5.3-dev pkg-config xvfb xauth fonts-dejavu-core
  debian_source scite
  if [ ! -x source/scite/bin/SciTE ]; then
    make -C source/lexilla/src -j "$jobs" CXXFLAGS='-g -O2' >&2
    make -C source/scintilla/gtk -j "$jobs" GTK3=1 CXXFLAGS='-g -O2' >&2
    make -C source/scite/gtk -j "$jobs" GTK3=1 CXXFLAGS='-g -O2 -DBUILD_DATE="\"none\""' >&2
  fi
  awk 'BEGIN {
    for (i = 0; i < 4000; i++)
      printf "// Function number %d\nint function_%d(int a) {\n  if (a > %d) {\n    return a * %d; /* \"text\" */\n  }\n  return \"abc\"[a %% 3];\n}\n\n", i, i, i, i
  }' > input.cpp
  awk 'BEGIN { for (i = 0; i < 2000; i++) printf "class C%d:\n    \"\"\"text %d\"\"\"\n    def f(self, a=%d):\n        return [a, %d]\n\n", i, i, i, i }' > input.py
  mkdir -p home
  printf 'buffers=10\nfold=1\nfold.on.open=0\nline.margin.visible=1\nwrap=1\nhighlight.current.word=1\nsave.recent=0\nsave.session=0\n' > home/.SciTEUser.properties
}

run() {
  rm -f out.html pipe
  mkfifo pipe
  # The window ends by a message to its pipe, which is read after the arguments were carried out.
  { wait_for test -s out.html && timeout 30 bash -c 'echo quit: > pipe'; } &
  HOME=$PWD/home SciTE_HOME=$PWD/source/scite/src GIO_USE_VFS=local GSETTINGS_BACKEND=memory NO_AT_BRIDGE=1 DBUS_SESSION_BUS_ADDRESS=disabled: \
    xvfb-run -a -s '-screen 0 1280x800x24' "$@" source/scite/bin/SciTE "-ipc.scite.name=$PWD/pipe" input.py input.cpp \
    -find:function_3999 -goto:20000 "-exportashtml:$PWD/out.html" > out.txt
  wait
}
