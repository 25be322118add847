# git log with patches, statistics and renames over a generated history of 300 commits.
build() {
  packages zlib1g-dev
  debian_source git
  if [ ! -x source/git ]; then
    make -C source -j "$jobs" CFLAGS='-g -O2' NO_CURL=1 NO_EXPAT=1 NO_GETTEXT=1 NO_OPENSSL=1 NO_TCLTK=1 NO_PERL=1 NO_PYTHON=1 git >&2
  fi
  if [ ! -d history.git ]; then
    rm -rf new.git
    source/git init -q --bare new.git
    history | source/git --git-dir new.git fast-import --quiet
    source/git --git-dir new.git repack -q -a -d
    mv new.git history.git
  fi
}

history() {
  awk 'function data(text) { printf "data %d\n%s\n", length(text), text }
  BEGIN {
    for (c = 1; c <= 300; c++) {
      printf "commit refs/heads/main\nmark :%d\nauthor A%d <a%d@example.org> %d +0000\ncommitter C <c@example.org> %d +0000\n", c, c % 7, c % 7, 1600000000 + c * 60, 1600000000 + c * 60
      data("Change number " c "\n\nA body of this message.\n")
      if (c > 1) printf "from :%d\n", c - 1
      for (f = 0; f < 3; f++) {
        text = ""
        for (l = 0; l < 200; l++) text = text "line " l " of file " f ((l * 13 + c) % 17 == 0 ? " changed in " c : "") "\n"
        printf "M 100644 inline dir%d/file%d.c\n", (c * 7 + f) % 20, (c + f) % 30
        data(text)
      }
      if (c % 20 == 0) printf "R dir%d/file%d.c dir%d/renamed%d.c\n", (c * 7) % 20, c % 30, (c * 7) % 20, c
    }
    print "done"
  }'
}

run() {
  GIT_CONFIG_NOSYSTEM=1 HOME=$PWD "$@" source/git --no-pager --git-dir history.git log -p --stat -M --graph --decorate main > out.txt
}
