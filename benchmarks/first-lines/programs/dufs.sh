# dufs, a file server of crates.io (hyper, tokio): pages, JSON, searches, downloads, an archive, an upload.
build() {
  packages curl
  crate dufs 0.43.0 --no-default-features
  if [ ! -d site ]; then
    mkdir -p site.new/sub
    for i in $(seq 150); do seq "$i" 2000 > "site.new/sub/file-$i.txt"; done
    mv site.new site
  fi
}

run() {
  local port=$((20000 + $$ % 20000))
  rm -f site/upload-*
  TOKIO_WORKER_THREADS=2 "$@" bin/dufs -A -b 127.0.0.1 -p "$port" site > server.log &
  local server=$! url=http://127.0.0.1:$port
  wait_for curl -s -o /dev/null "$url/"
  for i in $(seq 30); do
    curl -s -o /dev/null "$url/sub/" "$url/sub/?json" "$url/sub/?q=file-$i" "$url/sub/file-$i.txt" "$url/sub/file-$i.txt?hash" "$url/sub/absent-$i"
    curl -s -o /dev/null -T site/sub/file-1.txt "$url/upload-$i.txt"
  done
  curl -s -o /dev/null "$url/sub/?zip"
  pkill -INT -P "$server" -x dufs || kill -INT "$server"
  wait "$server" || true
}
