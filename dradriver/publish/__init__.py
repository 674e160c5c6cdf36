"""Where the slices of this node are published: manifests in a directory, kept as they should be."""

from dradriver.publish.api import Publisher, PublishResult
from dradriver.publish.files import FilePublisher

__all__ = ["FilePublisher", "PublishResult", "Publisher"]
