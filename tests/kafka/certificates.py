"""A CA, and certificates of servers and clients for one hour, made by openssl."""

import subprocess


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    def __init__(self, directory):
        self.directory = directory
        self.certificate = directory / "ca.pem"
        self.key = directory / "ca.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-days", "1", "-subj", "/CN=tests of Kafka", "-keyout", self.key,
                "-out", self.certificate)  # fmt: skip

    def issue(self, name):
        """`name.pem` and `name.key`, replaced if they are there."""
        certificate, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        request, extensions = self.directory / f"{name}.csr", self.directory / f"{name}.ext"
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-subj", f"/CN={name}", "-keyout", key, "-out", request)  # fmt: skip
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key,
                "-CAcreateserial", "-days", "1", "-extfile", extensions,
                "-out", certificate)  # fmt: skip
        return certificate, key

    def keystore(self, name):
        """A new certificate with its key in one file, as Kafka reads it."""
        certificate, key = self.issue(name)
        store = self.directory / f"{name}.store.pem"
        store.write_text(key.read_text() + certificate.read_text())
        return store
