# ripgrep over a generated tree with files that .gitignore excludes.
build() {
  crate ripgrep 14.1.1
  if [ ! -d tree ]; then
    rm -rf tree.new
    mkdir -p tree.new/.git
    for d in $(seq 40); do
      mkdir -p "tree.new/d$d/sub/build"
      printf '*.log\n/sub/build/\n!keep%d.log\ntmp-[0-9]*\n' "$d" > "tree.new/d$d/.gitignore"
      for f in $(seq 12); do
        seq -f "needle%.0f of file $f in $d: some words, other" 1 150 > "tree.new/d$d/sub/f$f.txt"
        echo hidden > "tree.new/d$d/f$f.log"
      done
    done
    mv tree.new tree
  fi
}

run() {
  "$@" bin/rg --no-config -j 2 -n -i --stats -e 'needle1[0-9]+' -e '(some|other)\s+wo\w+.*7' -e '\p{Greek}' -g '!*.bak' tree > out.txt
}
