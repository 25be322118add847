# python3 with numpy: arrays, JSON, dictionaries. memray records it, too.
build() {
  [ -x venv/bin/memray ] || { packages python3-venv; python3 -m venv venv; venv/bin/pip install -q numpy==2.2.6 memray==1.17.2 >&2; }
  venv/bin/python -c 'import numpy, sys; print("python", sys.version.split()[0], "numpy", numpy.__version__)' > version
  cat > shop.py <<'PY'
import json
import numpy


def load_orders(count):
    return [{"item": f"item-{i % 50}", "count": i % 7, "price": i * 1.5} for i in range(count)]


def prices(orders):
    return numpy.array([order["price"] for order in orders])


def correlations(values):
    grid = numpy.outer(values[:1000], values[:1000])
    return numpy.sort(grid, axis=0).sum()


def by_item(orders):
    groups = {}
    for order in orders:
        groups.setdefault(order["item"], []).append(order)
    return groups


def report(orders):
    return json.dumps({"orders": orders, "items": list(by_item(orders))})


def main():
    orders = load_orders(60000)
    text = report(orders)
    print(correlations(prices(orders)), len(text), len(json.loads(text)["orders"]))


main()
PY
}

run() {
  "$@" venv/bin/python shop.py > out.txt
}

memray() {
  rm -f recordings/memray.bin
  venv/bin/python -m memray run -q --native -o recordings/memray.bin shop.py > out.txt
  COLUMNS=160 venv/bin/python -m memray summary recordings/memray.bin
}
