"""Archives read in place: members of .zip, .tar, .tar.gz and .tar.zst as a sequence, on disk or in a bucket.

`place` and `web` read bytes by position; `zip` (with `directory` and `methods`), `tar`, `zst`, `stream` and
`folder` are formats, each a `content.Content`; `ring` keeps members in memory shared by processes;
`reader` is what users see. Nothing is extracted unless asked for, and nothing an archive says is believed.
"""

from lake.archives.reader import Archive, archive
from lake.archives.recompress import recompress
from lake.archives.ring import Counters
from lake.archives.samples import Samples
from lake.archives.table import Member

__all__ = ["Archive", "Counters", "Member", "Samples", "archive", "recompress"]
