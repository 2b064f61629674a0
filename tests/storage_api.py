"""Cloud Storage on loopback: any text is a name of an object, unlike in the emulator."""

import base64
import hashlib
import re
import urllib.parse
from typing import Any

from tests.launch.rest_api import Api


class StorageApi(Api):
    """Objects by BUCKET/NAME, to be listed and read. All buckets exist."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        place, _, query = path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        found = re.fullmatch(r".*/storage/v1/b/([^/]+)(/o)?/?(?:(?<=/)(.+))?", place)
        assert found, place
        bucket, name = found[1], urllib.parse.unquote(found[3] or "")
        if not found[2]:
            return 200, {"kind": "storage#bucket", "name": bucket, "id": bucket, "location": "Z"}
        if name:
            if f"{bucket}/{name}" not in self.objects:
                return 404, {"error": {"code": 404, "message": f"No such object: {bucket}/{name}"}}
            if asked.get("alt") == "media":
                return 200, self.objects[f"{bucket}/{name}"]
            return 200, self.described(bucket, name)
        names = [key.partition("/")[2] for key in sorted(self.objects) if key.startswith(bucket)]
        names = [n for n in names if n.startswith(asked.get("prefix", ""))]
        whole, prefixes = names, []
        if mark := asked.get("delimiter"):
            start = len(asked.get("prefix", ""))
            whole = [n for n in names if mark not in n[start:]]
            prefixes = sorted({n[: n.index(mark, start) + 1] for n in names if mark in n[start:]})
        return 200, {"items": [self.described(bucket, n) for n in whole], "prefixes": prefixes}

    def described(self, bucket: str, name: str) -> dict:
        content = self.objects[f"{bucket}/{name}"]
        link = f"http://127.0.0.1:{self.server_port}/download/storage/v1/b/{bucket}/o/"
        return {
            "bucket": bucket,
            "name": name,
            "size": str(len(content)),
            "generation": "1",
            "timeCreated": "2026-01-01T00:00:00.000Z",
            "mediaLink": f"{link}{urllib.parse.quote(name, safe='')}?alt=media",
            "md5Hash": base64.b64encode(hashlib.md5(content).digest()).decode(),
        }
