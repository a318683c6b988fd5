//! Which interfaces carry a default route of this namespace: sending test traffic there may cut the user off.
//!
//! Control plane; reads routes, never changes them.

use std::net::{Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::route::{RouteAttribute, RouteMessage, RouteType},
};

use super::{netlink, netns};
use crate::error::{Error, Result};

/// The address families ("IPv4", "IPv6") whose default route goes out of the interface, in any routing table.
///
/// # Errors
/// Netlink failed.
pub fn default_routes_via(index: u32) -> Result<Vec<&'static str>> {
    let [v4, v6] = netlink::route(async |handle| {
        let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
        let mut answers = [Vec::new(), Vec::new()];
        for (answer, request) in answers.iter_mut().zip([v4, v6]) {
            *answer = handle.route().get(request).execute().try_collect().await.map_err(netlink::io_error)?;
        }
        Ok(answers)
    })
    .map_err(|error| Error::environment("read the routes of", netns::described()).os(&error))?;
    let carries = |routes: &[RouteMessage]| routes.iter().any(|route| is_default_via(route, index));
    Ok([("IPv4", carries(&v4)), ("IPv6", carries(&v6))]
        .into_iter()
        .filter(|(_, yes)| *yes)
        .map(|(name, _)| name)
        .collect())
}

fn is_default_via(route: &RouteMessage, index: u32) -> bool {
    let leaves = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Oif(oif) => *oif == index,
        RouteAttribute::MultiPath(hops) => hops.iter().any(|hop| hop.interface_index == index),
        _ => false,
    };
    route.header.destination_prefix_length == 0
        && route.header.kind == RouteType::Unicast
        && route.attributes.iter().any(leaves)
}
