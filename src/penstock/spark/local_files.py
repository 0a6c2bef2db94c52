"""Local files for Spark without a process each: two classes for Hadoop, which a Spark on this machine starts with.

Without its native library, which no package on PyPI carries, Hadoop starts `chmod` for each file it makes and
`readlink` for each file it renames. A batch of a streaming query writes two small files to its checkpoint, and that was
nine processes and most of the batch's time. The classes in classes/ do the same by Java's own calls. Spark brings a
compiler of Java (Janino), so no JDK is needed: the classes are compiled once for each version of Spark and of these
sources, and kept as a jar in the user's cache.

What cannot be prepared (no folder for a cache, a Java that does not start) is left out: Spark then works as it always
does, only slower. See docs/design/0020-local-files.md.
"""

from __future__ import annotations

import hashlib
import logging
import os
import zipfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError
from pyspark.find_spark_home import _find_spark_home

from penstock.spark.cache import cached

logger = logging.getLogger(__name__)

SOURCES = ("LocalFiles", "LocalFileContext")
"""In this order: a class comes after those it uses."""


CLASS_PATH = "spark.driver.extraClassPath"
IMPLEMENTATIONS = {
    "spark.hadoop.fs.file.impl": "penstock.spark.LocalFiles",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "penstock.spark.LocalFileContext",
}


def settings(configuration: Mapping[str, str]) -> dict[str, str]:
    """Settings to add to the configuration of a Spark that is about to start.

    Nothing, unless all of it runs on this machine (executors elsewhere do not have the jar) with Hadoop's own files.
    """
    if not configuration.get("spark.master", "").startswith("local") or IMPLEMENTATIONS.keys() & configuration.keys():
        return {}
    jar = prepared_jar()
    if jar is None:
        return {}
    others = configuration.get(CLASS_PATH)
    return {CLASS_PATH: os.pathsep.join([str(jar), others] if others else [str(jar)]), **IMPLEMENTATIONS}


def prepared_jar() -> Path | None:
    """The jar, made if need be; None if it cannot be made."""
    sources = {name: (files("penstock.spark") / "classes" / f"{name}.java").read_text("utf-8") for name in SOURCES}
    name = f"local-files-{_version(sources)}.jar"
    try:
        return cached(name, lambda jar: _write(jar, _compile(sources)))
    except (OSError, ValueError, Py4JError) as error:
        logger.warning("Spark will start a process for every file it writes: %s cannot be made: %s", name, error)
        return None


def _version(sources: Mapping[str, str]) -> str:
    return hashlib.sha256(repr((pyspark.__version__, sources)).encode()).hexdigest()[:16]


def _write(jar: Path, classes: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(jar, "w") as archive:
        for name, code in classes.items():
            archive.writestr(f"{name.replace('.', '/')}.class", code)


def _compile(sources: Mapping[str, str]) -> dict[str, bytes]:
    """The classes of sources that use those before them, by name, compiled by a JVM of their own."""
    jars = Path(_find_spark_home()) / "jars"
    (py4j,) = jars.glob("py4j-*.jar")
    port, token, process = launch_gateway(
        jarpath=str(py4j),
        classpath=str(jars / "*"),
        javaopts=["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"],
        die_on_exit=True,
        java_path=str(Path(os.environ["JAVA_HOME"]) / "bin" / "java"),
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        classes: dict[str, bytes] = {}
        loader = gateway.jvm.java.lang.ClassLoader.getSystemClassLoader()
        for source in sources.values():
            compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(loader)
            compiler.cook(source)
            classes.update({str(name): bytes(code) for name, code in compiler.getBytecodes().items()})
            loader = compiler.getClassLoader()
        return classes
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait()
