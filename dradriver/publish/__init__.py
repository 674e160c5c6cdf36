"""Where the slices of this node are published, and kept as they should be: at the API server, or in a directory."""

from dradriver.publish.api import Publisher, PublishResult
from dradriver.publish.apiserver import ApiPublisher, Loop
from dradriver.publish.errors import PublishError
from dradriver.publish.files import FilePublisher

__all__ = ["ApiPublisher", "FilePublisher", "Loop", "PublishError", "PublishResult", "Publisher"]
