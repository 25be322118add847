# java of the machine: collections, strings, direct buffers, deflate.
build() {
  command -v javac > /dev/null || packages default-jdk-headless
  java -version 2>&1 | head -1 > version
  cat > Shop.java <<'JAVA'
import java.nio.ByteBuffer;
import java.util.*;
import java.util.stream.*;
import java.util.zip.Deflater;

public class Shop {
    record Order(String item, int count, double price) {}

    static List<Order> loadOrders(int count) {
        return IntStream.range(0, count).mapToObj(i -> new Order("item-" + i % 50, i % 7, i * 1.5)).toList();
    }

    static Map<String, List<Order>> byItem(List<Order> orders) {
        return orders.stream().collect(Collectors.groupingBy(Order::item));
    }

    static int compress(String text) {
        Deflater deflater = new Deflater();
        deflater.setInput(text.getBytes());
        deflater.finish();
        int size = deflater.deflate(new byte[text.length()]);
        deflater.end();
        return size;
    }

    static List<ByteBuffer> buffers() {
        return IntStream.range(0, 200).mapToObj(i -> ByteBuffer.allocateDirect(20000)).toList();
    }

    public static void main(String[] arguments) {
        List<Order> orders = loadOrders(60000);
        System.out.println(byItem(orders).size() + " " + compress(orders.toString()) + " " + buffers().size());
    }
}
JAVA
  javac Shop.java
}

run() {
  "$@" java -XX:+UseSerialGC Shop > out.txt
}
