"""Prints what zeroconf finds: `see_mdns.py SECONDS [NAME…]`; ends early once every NAME is seen."""

from __future__ import annotations

import json
import sys
import time

from zeroconf import BadTypeInNameException, IPVersion, ServiceBrowser, ServiceListener, Zeroconf

SSH = "_ssh._tcp.local."
WORKSTATION = "_workstation._tcp.local."
PRINTER = "_ipp._tcp.local."


class Seen(ServiceListener):
    """Collects (type, name) pairs."""

    def __init__(self) -> None:
        self.pairs: set[tuple[str, str]] = set()

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Note a service that has appeared."""
        self.pairs.add((type_, name))

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Note a service that has changed."""
        self.pairs.add((type_, name))

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Keep what was seen once."""

    def hosts(self, kind: str) -> set[str]:
        """First labels of a type's names, without avahi's bracketed hardware address."""
        pairs = self.pairs.copy()
        return {name.split(".")[0].split(" [")[0] for type_, name in pairs if type_ == kind}


def details(zeroconf: Zeroconf, kind: str, name: str) -> dict[str, object]:
    """Server, port and addresses of one service, each None when it can't be had."""
    try:
        info = zeroconf.get_service_info(kind, name, 1500)
    except BadTypeInNameException:
        info = None
    return {
        "type": kind,
        "name": name,
        "server": info.server if info else None,
        "port": info.port if info else None,
        "addresses": info.parsed_addresses(IPVersion.V4Only) if info else [],
    }


def main() -> None:
    """Browse, then print one JSON document."""
    seconds, wanted = float(sys.argv[1]), set(sys.argv[2:])
    zeroconf, seen = Zeroconf(), Seen()
    browser = ServiceBrowser(zeroconf, [SSH, WORKSTATION, PRINTER], seen)
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if wanted and wanted <= seen.hosts(SSH) & seen.hosts(WORKSTATION):
            break
        time.sleep(0.02)
    found_s = round(time.monotonic() - begin, 3)
    time.sleep(1.0)
    services = [details(zeroconf, kind, name) for kind, name in sorted(seen.pairs)]
    browser.cancel()
    zeroconf.close()
    print(json.dumps({"found_s": found_s, "services": services}))


if __name__ == "__main__":
    main()
