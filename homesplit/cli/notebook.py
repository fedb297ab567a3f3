"""`homesplit notebook`: list, show, note and export the log of measurements."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import msgspec

from homesplit.cli.load_arguments import add_server_arguments, api_key_of
from homesplit.cli.load_checks import check_server, refuse_server
from homesplit.cli.output import add_json, command_context, print_json
from homesplit.cli.progress_line import with_progress_line
from homesplit.core.entry import KINDS
from homesplit.core.former_self import address_of
from homesplit.stages.bench import Target, deployed
from homesplit.stages.context import Context
from homesplit.stages.export import FORMATS, export, pictures_beside
from homesplit.stages.notebook import (
    add_note,
    goes_on,
    list_entries,
    notes_on,
    page_of,
    show_entry,
)
from homesplit.stages.repeat import Repeated, needs_server, repeat, repeatable
from homesplit.view.entry_page import entry_page
from homesplit.view.spans import plain

LEAST_COLUMNS = 80
PIPED_COLUMNS = 120
"""Where no terminal says how wide it is."""


def add_parser(subparsers: Any) -> None:
    """Add the command and its parts."""
    parser = subparsers.add_parser("notebook", help="the log of measurements")
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    listing = parts.add_parser("list", help="all entries, oldest first")
    listing.add_argument("--kind", choices=KINDS)
    listing.set_defaults(run=_list)
    show = parts.add_parser("show", help="one entry with its raw records")
    show.add_argument("entry", help="its id, number, or the start of its id")
    show.set_defaults(run=_show)
    note = parts.add_parser("note", help="write a note by hand")
    note.add_argument("text")
    note.add_argument("--entry", help="the entry that it belongs to")
    note.set_defaults(run=_note)
    out = parts.add_parser("export", help="write entries to a file")
    out.add_argument("--format", choices=tuple(FORMATS), help="else the file's ending")
    out.add_argument("--out", required=True, type=Path, metavar="PATH")
    out.add_argument("--entry", action="append", default=[], metavar="ID", help="else all")
    out.add_argument("--names", action="store_true", help="keep host names and addresses")
    out.set_defaults(run=_export)
    again = parts.add_parser("repeat", help="measure an entry again and compare with it")
    again.add_argument("entry", help="its id, number, or the start of its id")
    add_server_arguments(again)
    again.set_defaults(run=_repeat)
    for part in (listing, show, note, out, again):
        add_json(part)


def _list(args: argparse.Namespace) -> int:
    entries = list_entries(command_context(), args.kind)
    if args.json:
        keys = ("id", "number", "kind", "at", "sentence", "on_entry", "ended")
        told = [{key: getattr(e, key) for key in keys} for e in entries]
        for entry, one in zip(entries, told, strict=True):
            one["goes_on"] = goes_on(entry)
        print_json({"entries": told})
        return 0
    for entry in entries:
        # An entry is written down before it has ended.
        mark = "" if entry.ended else " (goes on)" if goes_on(entry) else " (broken off)"
        head = f"{entry.number:>4}  {entry.id}  {entry.at[:16]}  {entry.kind:<10}"
        print(f"{head}  {entry.sentence}{mark}")
    return 0


def _show(args: argparse.Namespace) -> int:
    ctx = command_context()
    entry, raw = show_entry(ctx, args.entry)
    if args.json:
        notes = notes_on(ctx, entry.id)
        print_json({**page_of(entry), "raw": raw, "notes": notes})
        return 0
    width = max(LEAST_COLUMNS, shutil.get_terminal_size((PIPED_COLUMNS, 24)).columns)
    notes = [note.sentence for note in notes_on(ctx, entry.id)]
    print(plain(entry_page(page_of(entry), msgspec.to_builtins(raw), notes, None, width)))
    print(f"All of it: homesplit notebook show {entry.number} --json")
    return 0


def _note(args: argparse.Namespace) -> int:
    entry = add_note(command_context(), args.text, entry=args.entry)
    if args.json:
        print_json({"id": entry})
    else:
        print(entry)
    return 0


def _repeat(args: argparse.Namespace) -> int:
    with with_progress_line(command_context()) as ctx:
        found = asyncio.run(_again(ctx, args))
    if args.json:
        changes = [{**msgspec.to_builtins(c), "sentence": c.words} for c in found.changes]
        print_json({**msgspec.to_builtins(found), "changes": changes})
    else:
        print(found.sentence)
    return 0


async def _again(ctx: Context, args: argparse.Namespace) -> Repeated:
    """On the server named, else the entry's own, else the current deployment; or on boxes."""
    entry, raw = show_entry(ctx, args.entry)
    if not needs_server(entry) or not repeatable(entry, raw):
        refuse_server(args, f"entry {entry.number} is a {entry.kind} and asks no server")
        return await repeat(ctx, entry, raw, None)
    url = args.url or address_of(entry)
    if url:
        key = api_key_of(args)
        target = Target(url=url, api_key=key, model=args.model, api=args.api, named=True)
        return await repeat(ctx, entry, raw, target)
    check_server(args)
    async with deployed(ctx) as target:
        own = dataclasses.replace(target, model=args.model, api=args.api)
        return await repeat(ctx, entry, raw, own)


def _export(args: argparse.Namespace) -> int:
    path = export(
        command_context(), args.out, form=args.format, entries=args.entry, names=args.names
    )
    form = args.format or path.suffix.removeprefix(".")
    pictures = pictures_beside(path) if form == "md" else None
    if args.json:
        print_json({"path": str(path), "pictures": str(pictures) if pictures else None})
    else:
        print(f"wrote {path}{f', its pictures are in {pictures}' if pictures else ''}")
    return 0
