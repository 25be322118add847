# redis-server with glibc's malloc: strings, lists, hashes, sorted sets, streams, Lua, through a socket.
build() {
  debian_source redis
  [ -x source/src/redis-server ] || make -C source -j "$jobs" MALLOC=libc OPT=-O2 DEBUG=-g USE_SYSTEMD=no redis-server redis-cli >&2
  # Debian's build file names no such target at its root.
  [ -s commands.txt ] || commands > commands.txt
}

commands() {
  awk 'BEGIN {
    for (i = 0; i < 4000; i++) {
      printf "SET string:%d value-%d-%s\r\n", i, i, "abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz"
      printf "RPUSH list:%d item-%d other-%d\r\n", i % 50, i, i
      printf "HSET hash:%d field:%d %d-a-value-that-is-longer-than-the-limit-of-a-listpack-entry-of-64-bytes\r\n", i % 100, i, i
      printf "SADD set:%d member-%d\r\n", i % 20, i
      printf "ZADD ranking:%d %d player-%d\r\n", i % 10, i * 7 % 1000, i
      printf "XADD stream:%d * sensor %d value %d\r\n", i % 5, i, i * 3
      printf "APPEND log:%d line-%d-of-this-log\r\n", i % 25, i
      printf "EXPIRE string:%d 1000\r\n", i
    }
    for (i = 0; i < 200; i++) {
      printf "EVAL \"local t = {} for i = 1, 50 do t[i] = redis.call(%cget%c, %cstring:%c .. i) end return t\" 0\r\n", 39, 39, 39, 39
      printf "SORT list:%d ALPHA LIMIT 0 20\r\n", i % 50
      printf "ZUNIONSTORE union:%d 2 ranking:%d ranking:%d\r\n", i % 4, i % 10, (i + 1) % 10
      printf "LRANGE list:%d 0 -1\r\n", i % 50
      printf "DEL string:%d\r\n", i
    }
  }'
}

run() {
  rm -f server.sock
  "$@" source/src/redis-server --port 0 --unixsocket "$PWD/server.sock" --save '' --appendonly no --daemonize no --dir "$PWD" > server.log &
  local server=$!
  wait_for source/src/redis-cli -s server.sock PING
  source/src/redis-cli -s server.sock --pipe < commands.txt > client.log 2>&1
  source/src/redis-cli -s server.sock SHUTDOWN NOSAVE > /dev/null 2>&1 || true
  wait "$server"
}
