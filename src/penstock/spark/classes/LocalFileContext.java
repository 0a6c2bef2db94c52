package penstock.spark;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.local.LocalConfigKeys;

/** The same for Hadoop's other interface to files, FileContext, with which Spark writes its checkpoints. */
public class LocalFileContext extends ChecksumFs {
    public LocalFileContext(URI uri, Configuration configuration) throws IOException, URISyntaxException {
        super(new Raw(configuration));
    }

    public static class Raw extends DelegateToFileSystem {
        public Raw(Configuration configuration) throws IOException, URISyntaxException {
            super(URI.create("file:///"), new LocalFiles.Raw(), configuration, "file", false);
        }

        public int getUriDefaultPort() {
            return -1;
        }

        public FsServerDefaults getServerDefaults() throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        public FsServerDefaults getServerDefaults(Path path) throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        public boolean isValidName(String name) {
            return true; // as Hadoop's own: the system below says what it cannot take
        }
    }
}
