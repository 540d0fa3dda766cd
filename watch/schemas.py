"""JSON Schemas of the files that the watch reads, for the reference."""

from pathlib import Path

from treehammer.watch import patrol
from treehammer.watch.patrol.patrol_file import build_patrol_schema

#: File -> where its schema is kept, and the schema.
SCHEMAS = {
    "patrol.toml": (Path(patrol.__file__).with_name("patrol.schema.json"), build_patrol_schema())
}
