import com.hivemq.embedded.EmbeddedHiveMQ;
import java.nio.file.Path;

/** HiveMQ CE in the foreground, with its folders in the directory of the one argument. */
public final class HiveMq {
    public static void main(final String[] args) throws Exception {
        final Path home = Path.of(args[0]);
        final EmbeddedHiveMQ broker = EmbeddedHiveMQ.builder()
                .withConfigurationFolder(home.resolve("conf"))
                .withDataFolder(home.resolve("data"))
                .withExtensionsFolder(home.resolve("extensions"))
                .build();
        broker.start().join();
        // The broker's own threads do not keep the process alive; SIGTERM ends it.
        Thread.currentThread().join();
    }
}
