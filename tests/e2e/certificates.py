"""Certificates made afresh with the openssl command, so that none in the repository can expire."""

import subprocess


def make(directory):
    """ca, other_ca, server, client (CN anna), nameless (no CN), stranger (of other_ca), revoked,
    expired."""
    _authority(directory, "ca")
    _authority(directory, "other_ca")
    san = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    _issue(directory, "server", "ca", "/CN=localhost", san)
    _issue(directory, "renewed", "ca", "/CN=localhost/O=renewed", san)
    _issue(directory, "client", "ca", "/O=quelea/CN=anna", "extendedKeyUsage=clientAuth")
    _issue(directory, "nameless", "ca", "/O=quelea", "extendedKeyUsage=clientAuth")
    _issue(directory, "revoked", "ca", "/O=quelea/CN=bruno", "extendedKeyUsage=clientAuth")
    _issue(directory, "stranger", "other_ca", "/CN=eve", "extendedKeyUsage=clientAuth")
    _issue(directory, "expired", "ca", "/CN=anna", "extendedKeyUsage=clientAuth", days=-1)
    _revoke(directory)
    return directory


def _authority(directory, name):
    _openssl(
        directory, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-keyout", f"{name}.key", "-out", f"{name}.crt", "-days", "2", "-subj", f"/CN={name}",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )


def _issue(directory, name, authority, subject, extension, days=2):
    _openssl(
        directory, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject,
    )
    (directory / f"{name}.ext").write_text(extension + "\nbasicConstraints=CA:FALSE\n")
    _openssl(
        directory, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.crt",
        "-CAkey", f"{authority}.key", "-CAcreateserial", "-out", f"{name}.crt",
        "-days", str(days), "-extfile", f"{name}.ext",
    )


def _revoke(directory):
    (directory / "index.txt").write_text("")
    (directory / "ca.cnf").write_text(
        "[ca]\ndefault_ca = it\n[it]\ndatabase = index.txt\ndefault_md = sha256\n"
        "default_crl_days = 2\ncrlnumber = crlnumber\ncrl_extensions = more\n"
        "[more]\nauthorityKeyIdentifier = keyid\n"
    )
    (directory / "crlnumber").write_text("01\n")
    authority = ["ca", "-config", "ca.cnf", "-cert", "ca.crt", "-keyfile", "ca.key"]
    _openssl(directory, *authority, "-revoke", "revoked.crt")
    _openssl(directory, *authority, "-gencrl", "-out", "ca.crl")


def _openssl(directory, *arguments):
    ran = subprocess.run(["openssl", *arguments], cwd=directory, capture_output=True, text=True)
    assert ran.returncode == 0, f"openssl {' '.join(arguments)}: {ran.stderr}"
