// Reads orders, groups them by customer, and prints invoices. Two threads keep pages of invoices in a cache that only grows.
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

struct Order {
    std::string customer;
    std::vector<std::string> items;
};

using Orders = std::vector<Order>;
using Customers = std::map<std::string, std::vector<const Order *>>;

static std::map<std::string, std::string> *cache = new std::map<std::string, std::string>;
static std::mutex cache_lock;

static std::vector<std::string> parse_items(const std::string &line) {
    std::vector<std::string> items;
    for (size_t from = 0, to; (to = line.find(';', from)) != std::string::npos; from = to + 1)
        items.push_back(line.substr(from, to - from));
    return items;
}

static std::string read_line(int number) {
    std::string line;
    for (int item = 0; item < 4 + number % 5; item++)
        line += "article with a long name " + std::to_string(number * 7 + item) + ";";
    return line;
}

static Orders load_orders(int count) {
    Orders orders;
    for (int number = 0; number < count; number++) {
        std::string line = read_line(number);
        orders.push_back({"customer number " + std::to_string(number % 1500), parse_items(line)});
    }
    return orders;
}

static Customers group_by_customer(const Orders &orders) {
    Customers customers;
    for (const Order &order : orders)
        customers[order.customer].push_back(&order);
    return customers;
}

static std::string print_invoice(const std::vector<const Order *> &orders) {
    std::string invoice = "Invoice\n";
    for (const Order *order : orders)
        for (const std::string &item : order->items)
            invoice += "  1 x " + item + "\n";
    return invoice;
}

static void keep_page(const std::string &name, std::string page) {
    std::lock_guard<std::mutex> guard(cache_lock);
    (*cache)[name] = std::move(page);
}

static void print_invoices(const Customers &customers, size_t part) {
    size_t number = 0;
    for (const auto &[customer, orders] : customers)
        if (number++ % 2 == part)
            keep_page(customer, print_invoice(orders));
}

int main() {
    for (int month = 0; month < 4; month++) {
        Orders orders = load_orders(3000 + 3000 * month);
        Customers customers = group_by_customer(orders);
        std::thread even(print_invoices, std::cref(customers), 0), odd(print_invoices, std::cref(customers), 1);
        even.join();
        odd.join();
    }
    return 0;
}
