import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;

/** Threads that keep maps of strings, throw parts of them away, and look at all in the end. */
public class Heap {
    static final int THREADS = 4, KEYS = 60_000, ROUNDS = 6;

    static String value(int thread, int key, int age) {
        return (thread + ":" + key + ":" + age + " ").repeat(20 + key % 20);
    }

    static byte[] work(int thread) throws Exception {
        Map<Integer, String> map = new HashMap<>();
        int[] ages = new int[KEYS];
        Random random = new Random(thread);
        for (int key = 0; key < KEYS; key++) map.put(key, value(thread, key, 0));
        for (int round = 1; round < ROUNDS; round++) {
            for (int n = 0; n < KEYS / 4; n++) {
                int key = random.nextInt(KEYS);
                if (!map.get(key).equals(value(thread, key, ages[key]))) throw new Error("key " + key);
                ages[key] = round;
                map.put(key, value(thread, key, round));
            }
        }
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (int key = 0; key < KEYS; key++) {
            if (!map.get(key).equals(value(thread, key, ages[key]))) throw new Error("key " + key);
            digest.update(map.get(key).getBytes("US-ASCII"));
        }
        return digest.digest();
    }

    public static void main(String[] none) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(THREADS);
        List<Future<byte[]>> all = new ArrayList<>();
        for (int t = 0; t < THREADS; t++) {
            int thread = t;
            all.add(pool.submit(() -> work(thread)));
        }
        for (Future<byte[]> one : all) System.out.println(HexFormat.of().formatHex(one.get()));
        pool.shutdown();
    }
}
