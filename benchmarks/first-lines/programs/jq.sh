# jq: parses 4 MB of JSON, groups, sorts, matches, formats.
build() {
  packages libonig-dev autoconf automake libtool bison flex
  debian_source jq
  if [ ! -x source/jq ]; then
    (cd source && { [ -x configure ] || autoreconf -i >&2; } &&
      ./configure --disable-docs --disable-maintainer-mode --disable-shared --enable-static CFLAGS='-g -O2' >&2 && make -j "$jobs" >&2)
  fi
  [ -s input.json ] || awk 'BEGIN {
    for (i = 0; i < 20000; i++)
      printf "{\"id\":%d,\"name\":\"user-%d\",\"team\":\"team-%d\",\"tags\":[\"a%d\",\"b%d\"],\"score\":%d.5,\"address\":{\"city\":\"c%d\",\"zip\":\"%05d\"}}\n",
        i, i, i % 40, i % 9, i % 11, i * 31 % 1000, i % 17, i
  }' > input.json
  cat > filter.jq <<'JQ'
group_by(.team)
| map({ team: .[0].team, count: length, best: (sort_by(-.score) | .[0:3] | map(.name)),
        tags: (map(.tags[]) | unique), cities: (map(.address.city) | unique | join(",")),
        zips: [.[] | .address.zip | select(test("^0[0-9]*7$"))] | length,
        text: (map("\(.id):\(.name | ascii_upcase)") | .[0:50] | join(" ")) })
| map(. + { entries: (to_entries | map(.key)) })
JQ
}

run() {
  "$@" source/jq -s -f filter.jq input.json > out.txt
}
