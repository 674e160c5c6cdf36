"""The sysctls that a claim may set: of its own interface in the pod's network namespace, and no others.

Facts: kernel, Documentation/networking/ip-sysctl.rst.
"""

import re
from difflib import get_close_matches

from dradriver.model import shown


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


INTERFACE = "IFNAME"
"""What stands for the interface's name in the name of a sysctl."""

_SYSCTL = re.compile(rf"net\.(ipv4|ipv6)\.(conf|neigh)\.{INTERFACE}\.([a-z0-9_]{{1,64}})")
_SYSCTL_VALUE = re.compile(r"-?[0-9]{1,10}")
_NEIGHBOUR_SYSCTLS = _names(
    """anycast_delay app_solicit base_reachable_time_ms delay_first_probe_time gc_stale_time interval_probe_time_ms
    locktime mcast_resolicit mcast_solicit proxy_delay proxy_qlen retrans_time_ms ucast_solicit unres_qlen
    unres_qlen_bytes"""
)
SYSCTLS = {
    ("ipv4", "conf"): _names(
        """accept_local accept_redirects accept_source_route arp_accept arp_announce arp_evict_nocarrier arp_filter
        arp_ignore arp_notify disable_policy disable_xfrm drop_gratuitous_arp drop_unicast_in_l2_multicast
        force_igmp_version forwarding igmpv2_unsolicited_report_interval igmpv3_unsolicited_report_interval
        ignore_routes_with_linkdown medium_id promote_secondaries proxy_arp proxy_arp_pvlan
        rp_filter secure_redirects send_redirects shared_media src_valid_mark tag"""
    ),
    ("ipv6", "conf"): _names(
        """accept_dad accept_ra accept_ra_defrtr accept_ra_from_local accept_ra_min_hop_limit accept_ra_min_lft
        accept_ra_mtu accept_ra_pinfo accept_ra_rt_info_max_plen accept_ra_rt_info_min_plen accept_ra_rtr_pref
        accept_redirects accept_source_route accept_untracked_na addr_gen_mode autoconf dad_transmits disable_ipv6
        disable_policy drop_unicast_in_l2_multicast drop_unsolicited_na enhanced_dad force_mld_version force_tllao
        forwarding hop_limit ignore_routes_with_linkdown keep_addr_on_down max_addresses max_desync_factor
        mldv1_unsolicited_report_interval mldv2_unsolicited_report_interval ndisc_evict_nocarrier ndisc_notify
        ndisc_tclass ra_defrtr_metric regen_max_retry router_probe_interval router_solicitation_delay
        router_solicitation_interval router_solicitation_max_interval router_solicitations rpl_seg_enabled seg6_enabled
        seg6_require_hmac suppress_frag_ndisc temp_prefered_lft temp_valid_lft use_oif_addrs_only use_optimistic
        use_tempaddr"""
    ),
    ("ipv4", "neigh"): _NEIGHBOUR_SYSCTLS,
    ("ipv6", "neigh"): _NEIGHBOUR_SYSCTLS,
}
"""Names by family and kind."""


def check_sysctl(name: str, value: str) -> tuple[str, str, str]:
    """Return family, `conf` or `neigh`, and the last part of the name of a sysctl that a claim may set.

    Raises ValueError. All of them are of one interface in the pod's network namespace.
    """
    match = _SYSCTL.fullmatch(name)
    if match is None:
        raise ValueError(
            f"sysctls: {shown(name)} is not of the interface: names like net.ipv4.conf.{INTERFACE}.arp_ignore are "
            f"allowed, in which {INTERFACE} stands for it"
        )
    allowed = SYSCTLS[match[1], match[2]]
    if match[3] not in allowed:
        # All of them are longer than what an event of a pod should say.
        near = " or ".join(get_close_matches(match[3], sorted(allowed)))
        raise ValueError(
            f"sysctls: {shown(name)} is not allowed{f' (is {near} meant?)' if near else ''}: docs/configuration.md "
            "lists those that are"
        )
    if not _SYSCTL_VALUE.fullmatch(value):
        raise ValueError(f"sysctls: {shown(name)}: {shown(value)} is no whole number")
    return match[1], match[2], match[3]
