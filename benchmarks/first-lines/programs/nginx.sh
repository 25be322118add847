# nginx in one process: static files with gzip, an index of a directory, a proxy to itself.
build() {
  packages libpcre2-dev zlib1g-dev curl
  debian_source nginx
  if [ ! -x source/objs/nginx ]; then
    (cd source && ./configure --prefix=/nonexistent --with-cc-opt='-g -O2' >&2 && make -j "$jobs" >&2)
  fi
  if [ ! -d site ]; then
    mkdir -p site.new/files
    for i in $(seq 100); do seq "$i" 3000 > "site.new/files/$i.txt"; done
    echo '<h1><!--#echo var="uri" --></h1><!--#include virtual="/files/1.txt" -->' > site.new/index.shtml
    mv site.new site
  fi
  mkdir -p logs
  cat > nginx.conf <<'CONF'
daemon off;
master_process off;
pid logs/nginx.pid;
error_log logs/error.log;
events { worker_connections 64; }
http {
  types { text/html html shtml; text/plain txt; }
  access_log logs/access.log;
  client_body_temp_path logs/body; proxy_temp_path logs/proxy; fastcgi_temp_path logs/fastcgi; scgi_temp_path logs/scgi;
  gzip on; gzip_types text/plain;
  upstream self { server unix:logs/http.sock; }
  server {
    listen unix:logs/http.sock;
    root site;
    location /files/ { autoindex on; }
    location /index.shtml { ssi on; }
    location ~ ^/proxy/(.*)$ { proxy_pass http://self/$1; }
  }
}
CONF
}

run() {
  rm -f logs/http.sock
  "$@" source/objs/nginx -p "$PWD/" -c nginx.conf > server.log &
  local server=$! get=(curl -s --compressed --unix-socket logs/http.sock -o /dev/null)
  wait_for "${get[@]}" http://localhost/index.shtml
  for i in $(seq 60); do
    "${get[@]}" "http://localhost/files/$i.txt" "http://localhost/proxy/files/$i.txt" -o /dev/null
  done
  for _ in $(seq 20); do "${get[@]}" http://localhost/files/; "${get[@]}" http://localhost/index.shtml; done
  kill -QUIT "$(cat logs/nginx.pid)"
  wait "$server"
}
