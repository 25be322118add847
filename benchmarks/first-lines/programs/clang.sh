# clang 14 of Debian, which has no debug information but the names of its libraries' functions: one C++ file at -O2.
build() {
  packages clang-14 libstdc++-12-dev
  dpkg-query -W -f '${Version}\n' clang-14 > version
  cat > input.cpp <<'CPP'
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>
struct Order { std::string item; int count; double price; };
struct Shape { virtual ~Shape() = default; virtual double area() const = 0; };
struct Circle : Shape { double r; explicit Circle(double r) : r(r) {} double area() const override { return 3.14159 * r * r; } };
struct Square : Shape { double a; explicit Square(double a) : a(a) {} double area() const override { return a * a; } };
template <int N> struct Sum { static int of(const std::vector<int> &v) { return v[N % v.size()] + Sum<N - 1>::of(v); } };
template <> struct Sum<0> { static int of(const std::vector<int> &v) { return v.front(); } };
std::map<std::string, std::vector<Order>> by_item(const std::vector<Order> &orders) {
  std::map<std::string, std::vector<Order>> map;
  for (const Order &order : orders) map[order.item].push_back(order);
  for (auto &entry : map) std::sort(entry.second.begin(), entry.second.end(), [](auto &a, auto &b) { return a.price < b.price; });
  return map;
}
double areas(int n) {
  std::vector<std::unique_ptr<Shape>> shapes;
  for (int i = 0; i < n; i++) { if (i % 2) shapes.push_back(std::make_unique<Circle>(i)); else shapes.push_back(std::make_unique<Square>(i)); }
  double sum = 0;
  for (const auto &shape : shapes) sum += shape->area();
  return sum;
}
int count(const std::vector<std::string> &words) {
  std::unordered_map<std::string, int> seen;
  for (const auto &word : words) seen[word]++;
  int most = 0;
  for (const auto &entry : seen) most = std::max(most, entry.second);
  return most + Sum<60>::of({1, 2, 3});
}
CPP
}

run() {
  "$@" clang-14 -std=c++17 -O2 -g -c input.cpp -o input.o
}
