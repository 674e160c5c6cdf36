"""What the API server stores of a slice: found out before the first write, and again when it is in doubt."""

import random

from dradriver.clock import Clock
from dradriver.kube import SLICES, Client, StatusError
from dradriver.model.names import pool_name
from dradriver.publish.errors import PublishError, explained, part
from dradriver.slices import (
    ApiFeatures,
    Body,
    features_of,
    learned,
    only,
    probes,
    slice_object,
    still_stored,
)

REFUSED = frozenset({400, 422})
"""Answers to an object that is invalid; 400 where it cannot even be decoded."""

LOOK_SECONDS = 600.0
"""How often the version is looked at where nothing else gives reason to, spread by a quarter."""

AGAIN_SECONDS = 60.0
"""How long what a whole round of probes told is believed where a refusal speaks against it, or, after the first of
them, another connection lost; then for longer each time, up to `LOOK_SECONDS`, where connections are lost often."""


class Learner:
    """The features of the API server. Not thread-safe.

    A gate that is switched off shows in the answers to what is written, where something is; one that is switched on
    does not. So both are asked for whenever the server may have been restarted. A version that changed is reason to ask
    for everything; of several servers, one after the other may be replaced while the watch goes on at another.
    """

    def __init__(self, client: Client, node: str, clock: Clock) -> None:
        self._client = client
        self._node = node
        self._clock = clock
        self._features: ApiFeatures | None = None
        self._version = ""
        self._probed = 0.0
        self._doubtful = False
        self._pause = 0.0
        self._look_at = 0.0
        self.edition = 0

    @property
    def is_due(self) -> bool:
        """Whether what was learned is to be looked at again."""
        if self._features is None:
            return False
        return self._clock.now() >= self._look_at or self._is_to_be_probed()

    def get(self, driver: str) -> ApiFeatures:
        """Return what the server stores; `edition` rises when that, or the version, changes. Raises OSError.

        driver   of which a slice is created in a dry run
        """
        features = self._features
        if features is None or self.is_due:
            version = self._server_version()
            if features is None or version != self._version or self._is_to_be_probed():
                features = self._probe(driver)
            self._look_at = self._clock.now() + LOOK_SECONDS * random.uniform(0.75, 1.25)  # noqa: S311
            if features != self._features or version != self._version:
                self.edition += 1
            self._features, self._version = features, version
        return features

    def doubt(self) -> None:
        """Look again at the next occasion: the connection was lost, and the server may be another since."""
        self._doubtful = True
        self._look_at = self._clock.now()

    def renewed(self, driver: str) -> bool:
        """Probe again where that was not done lately, and return whether something changed. Raises OSError."""
        if self._clock.now() - self._probed < AGAIN_SECONDS:
            return False
        return self._found(self._probe(driver))

    def answered(self, sent: Body, stored: Body) -> bool:
        """Learn from the answer to a spec that was stored; return whether that changed anything."""
        return self._found(still_stored(self._features or ApiFeatures(), sent, stored))

    def _is_to_be_probed(self) -> bool:
        return self._doubtful and self._clock.now() - self._probed >= self._pause

    def _found(self, features: ApiFeatures) -> bool:
        changed = features != self._features
        self._features = features
        self.edition += changed
        return changed

    def _server_version(self) -> str:
        try:
            version = self._client.get("/version")
        except StatusError as error:
            if error.code in {401, 403, 404}:
                return ""
            raise
        return str(part(version, "gitVersion"))

    def _probe(self, driver: str) -> ApiFeatures:
        pool = pool_name(self._node, "probe")
        answers = [(feature, spec, self._answer(spec)) for feature, spec in probes(driver, self._node, pool)]
        if all(answer is None for _, _, answer in answers):
            self._check_plain(only(answers[0][1], ()))
        now = self._clock.now()
        if self._doubtful:
            often = now - self._probed < LOOK_SECONDS
            self._pause = min(max(AGAIN_SECONDS, 2 * self._pause), LOOK_SECONDS) if often else AGAIN_SECONDS
        self._probed, self._doubtful = now, False
        return features_of(feature for feature, spec, answer in answers if learned(feature, spec, answer))

    def _check_plain(self, spec: Body) -> None:
        """See that an empty slice is taken: where it is not, for a policy or a webhook, refusals teach nothing."""
        try:
            dry_run(self._client, spec)
        except StatusError as error:
            text = f"the API server takes no slice of this node in a dry run: {error.message}"
            raise PublishError(text) from error

    def _answer(self, spec: Body) -> Body | None:
        try:
            return dry_run(self._client, spec)
        except StatusError as error:
            if error.code in REFUSED:
                return None
            raise explained(error, "create", "resourceslices") from error


def dry_run(client: Client, spec: Body) -> Body:
    """Return what the API server would store of a spec. Raises KubeError."""
    body = slice_object({"generateName": "dradriver-probe-"}, spec)
    answer: Body = part(client.create(SLICES, body, {"dryRun": "All"}), "spec")
    return answer
