"""Certificates made by the tests, and servers and clients that use them."""

from __future__ import annotations

import datetime
from pathlib import Path

import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock import Server
from penstock.testing.redis import free_port


def _usage(authority: bool) -> x509.KeyUsage:
    """Required by Python 3.13: an authority signs certificates, others sign."""
    rest = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(digital_signature=True, key_cert_sign=authority, crl_sign=authority, **rest)


class Authority:
    """Signs certificates and writes them to a folder as PEM files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate(self._name, self._key, True).public_bytes(serialization.Encoding.PEM))

    def _certificate(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(_usage(authority), critical=True)
        )
        return builder.sign(self._key, hashes.SHA256())

    def issue(self, name: str, pass_phrase: bytes | None = None) -> tuple[str, str]:
        """Paths of a certificate and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate, key_file = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        certificate.write_bytes(self._certificate(subject, key, False).public_bytes(serialization.Encoding.PEM))
        encryption = serialization.BestAvailableEncryption(pass_phrase) if pass_phrase else serialization.NoEncryption()
        key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return str(certificate), str(key_file)


def tls_server(authority: Authority, **directives: object) -> Server:
    certificate, key = authority.issue("server")
    settings = {
        "tls_port": free_port(), "tls_cert_file": certificate, "tls_key_file": key, "tls_ca_cert_file": authority.file,
        **directives,
    }  # fmt: skip
    return Server(**settings)


def tls_client(port: int, authority: Authority, identity: tuple[str, str] | None = None) -> redis.Redis:
    certificate, key = identity or (None, None)
    return redis.Redis(
        host="localhost", port=port, ssl=True, ssl_ca_certs=str(authority.file), ssl_certfile=certificate,
        ssl_keyfile=key, protocol=3, retry=None,
    )  # fmt: skip
