# node of the machine: objects, JSON, buffers, a sort.
build() {
  command -v node > /dev/null || packages nodejs
  echo "node $(node --version)" > version
  cat > shop.js <<'JS'
function loadOrders(count) {
  return Array.from({ length: count }, (_, i) => ({ item: `item-${i % 50}`, count: i % 7, price: i * 1.5 }));
}
function byItem(orders) {
  const groups = new Map();
  for (const order of orders) groups.set(order.item, [...(groups.get(order.item) ?? []).slice(-50), order]);
  return groups;
}
function compress(text) {
  return require('zlib').gzipSync(Buffer.from(text));
}
function main() {
  const orders = loadOrders(60000);
  const text = JSON.stringify(orders);
  const buffers = Array.from({ length: 100 }, (_, i) => Buffer.alloc(20000, i));
  console.log(byItem(orders).size, compress(text).length, JSON.parse(text).length, buffers.length);
}
main();
JS
}

run() {
  "$@" node shop.js > out.txt
}
