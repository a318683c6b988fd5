//! Builds a stream's fields and, per frame size, its template: bytes, writes, signature site, checksums.
//!
//! Pure; control plane. Varying fields become patch operations; everything else is written into the template once.

use super::{Checksum, Field, Generator, Template, Term, TermSource, Write, fold, random_value};
use crate::{
    profile::{Every, Header, Values, Vary},
    units::FrameLen,
    wire::{
        layer::{GRE_KEY, LayerKind, TPID_SERVICE},
        signature::{SignatureKind, SignatureSite},
    },
};

/// Period of a random field that never repeats.
const ENDLESS: u64 = 1 << 63;

/// A varying field's place in its header.
struct Place {
    layer: usize,
    bit: i32,
    bits: u32,
    field: u16,
}

/// A complete header stack, analysed once per stream and laid out once per size.
pub(super) struct Stack<'a> {
    headers: &'a [Header],
    /// Byte offset of each header, and of the payload.
    offsets: Vec<usize>,
    places: Vec<Place>,
    /// What varies.
    pub fields: Vec<Field>,
}

/// The sizes that a stream needs, FCS in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinSizes {
    /// For its headers alone.
    pub headers_bytes: u64,
    /// For a sequence: a short signature, which numbers only the first 256 streams, or a full one.
    pub short_bytes: u64,
    /// For a full signature (sequence and stamp).
    pub full_bytes: u64,
}

fn header_len(header: &Header) -> usize {
    match header.kind {
        LayerKind::Raw => header.raw.len(),
        LayerKind::Gre if header.fields.iter().any(|(field, _)| *field == GRE_KEY) => 8,
        kind => kind.header_bytes(),
    }
}

impl<'a> Stack<'a> {
    /// Analyses complete headers; `seed` belongs to this stream.
    ///
    /// # Errors
    /// A sentence: a field that waits for an unknown one, periods beyond 2⁶³, too many fields.
    pub fn new(headers: &'a [Header], seed: u64) -> Result<Stack<'a>, String> {
        let mut offsets = vec![0];
        for header in headers {
            offsets.push(offsets[offsets.len() - 1] + header_len(header));
        }
        let mut stack = Stack { headers, offsets, places: Vec::new(), fields: Vec::new() };
        let mut waits: Vec<(usize, String)> = Vec::new();
        for (layer, header) in headers.iter().enumerate() {
            for (position, vary) in &header.fields {
                let spec = header.spec(*position);
                let name = stack.field_name(layer, spec.names[0]);
                for (values, bit, bits) in split(&vary.values, spec.bit, spec.bits) {
                    let index = stack.fields.len();
                    let (generator, period) = generator(&values, random_value(seed, index as u64, u64::MAX));
                    let div = match &vary.every {
                        Every::Frames(frames) => *frames,
                        Every::Wrap(other) => {
                            waits.push((index, other.clone()));
                            1
                        }
                    };
                    let field = u16::try_from(index).map_err(|_| "more than 65,536 varying fields".to_owned())?;
                    stack.places.push(Place { layer, bit, bits, field });
                    stack.fields.push(Field { name: name.clone(), generator, div, period });
                }
            }
        }
        stack.resolve(waits)?;
        Ok(stack)
    }

    /// `udp.src_port`; in a second header of the same kind `udp#2.src_port`.
    fn field_name(&self, layer: usize, field: &str) -> String {
        let kind = self.headers[layer].kind;
        match self.headers[..layer].iter().filter(|below| below.kind == kind).count() {
            0 => format!("{}.{field}", kind.name()),
            n => format!("{}#{}.{field}", kind.name(), n + 1),
        }
    }

    /// A field that waits for another takes its next value when that one has gone through all of its own.
    fn resolve(&mut self, mut waits: Vec<(usize, String)>) -> Result<(), String> {
        while !waits.is_empty() {
            let pending: Vec<usize> = waits.iter().map(|(index, _)| *index).collect();
            let mut rest = Vec::new();
            for (index, name) in waits {
                let target = self.find(&name)?;
                if pending.contains(&target) {
                    rest.push((index, name));
                    continue;
                }
                let target = &self.fields[target];
                let div = target.div.checked_mul(target.period).filter(|&div| div < ENDLESS);
                self.fields[index].div =
                    div.ok_or_else(|| format!("`{name}` never starts again, so nothing can wait for it"))?;
            }
            if rest.len() == pending.len() {
                return Err(format!("`{}` waits for a field that waits for it", self.fields[pending[0]].name));
            }
            waits = rest;
        }
        Ok(())
    }

    /// The varying field of this name: `udp.src_port`, or `src_port` if only one has it.
    fn find(&self, name: &str) -> Result<usize, String> {
        let matches = |place: &&Place| {
            let header = &self.headers[place.layer];
            let spec_names = header
                .kind
                .fields()
                .iter()
                .filter(|spec| spec.bit <= place.bit && place.bit < spec.bit + spec.bits as i32);
            spec_names
                .flat_map(|spec| spec.names)
                .any(|short| *short == name || self.field_name(place.layer, short) == name)
        };
        let mut found = self.places.iter().filter(matches).map(|place| usize::from(place.field));
        let Some(first) = found.next() else {
            let names: Vec<_> = self.fields.iter().map(|field| field.name.as_str()).collect();
            return Err(format!("`every: {name}` names no varying field (there are: {})", names.join(", ")));
        };
        match found.find(|&other| self.fields[other].name != self.fields[first].name) {
            Some(other) => {
                let (a, b) = (&self.fields[first].name, &self.fields[other].name);
                Err(format!("`every: {name}` may mean {a} or {b}: write one of them"))
            }
            None => Ok(first),
        }
    }

    /// Bytes of all headers.
    fn headers_len(&self) -> usize {
        self.offsets[self.offsets.len() - 1]
    }

    /// Frame lengths from which each kind of signature fits.
    pub fn min_sizes(&self, stream: u16) -> MinSizes {
        let payload = self.signature_offset();
        let sequence =
            if stream <= SignatureKind::Short.max_stream() { SignatureKind::Short } else { SignatureKind::Full };
        let frame = |buf_len: usize| (buf_len as u64 + 4).max(FrameLen::MIN.bytes());
        MinSizes {
            headers_bytes: frame(self.headers_len()),
            short_bytes: frame(payload + sequence.len()),
            full_bytes: frame(payload + SignatureKind::Full.len()),
        }
    }

    /// The start of the payload, made even.
    fn signature_offset(&self) -> usize {
        self.headers_len().next_multiple_of(2)
    }

    /// The signature that fits into a frame of this length.
    fn site(&self, buf_len: usize, stream: u16) -> Option<SignatureSite> {
        let offset = self.signature_offset();
        let fits = |kind: &SignatureKind| offset + kind.len() <= buf_len && stream <= kind.max_stream();
        let kind = [SignatureKind::Full, SignatureKind::Short].into_iter().find(fits)?;
        Some(SignatureSite { offset: offset as u16, kind })
    }

    /// The template of this length, or `None` if the headers do not fit.
    pub fn template(&self, frame_len: FrameLen, signature: Option<(u32, u16)>) -> Option<Template> {
        let buf_len = frame_len.buf_len();
        if self.headers_len() > buf_len {
            return None;
        }
        let mut bytes = vec![0; buf_len];
        for layer in 0..self.headers.len() {
            self.lay(layer, &mut bytes);
        }
        // Given values come after everything computed: the user knows what a broken length is for.
        for (layer, header) in self.headers.iter().enumerate() {
            for (position, vary) in &header.fields {
                let spec = header.spec(*position);
                match (&vary.values, spec.bits) {
                    (Values::Fixed(value), bits) => put_bits(&mut bytes, self.bit(layer, spec.bit), bits, *value),
                    // A range of IPv6 addresses varies in its lower half only.
                    (Values::Step { .. } | Values::Random { .. }, 128) => {
                        let (low, _) = vary.values.bounds();
                        put_bits(&mut bytes, self.bit(layer, spec.bit), 64, low >> 64);
                    }
                    _ => {}
                }
            }
        }
        let writes: Vec<Write> = self.places.iter().map(|place| self.write(place)).collect();
        for write in &writes {
            for (i, byte) in bytes[usize::from(write.offset)..][..usize::from(write.width)].iter_mut().enumerate() {
                *byte &= !(write.mask >> (8 * (usize::from(write.width) - 1 - i))) as u8;
            }
        }
        let site = signature.and_then(|(_, stream)| self.site(buf_len, stream));
        if let (Some((run_tag, stream)), Some(site)) = (signature, site) {
            bytes[usize::from(site.offset)..][..site.kind.len()].copy_from_slice(&site.kind.constant(run_tag, stream));
        }
        let checksums = self.checksums(&bytes, &writes, site);
        Some(Template { bytes: bytes.into_boxed_slice(), frame_len, writes, signature: site, checksums })
    }

    fn bit(&self, layer: usize, bit: i32) -> usize {
        (self.offsets[layer] as i64 * 8 + i64::from(bit)) as usize
    }

    /// Writes a header's constants, its lengths and what it says about the next one.
    fn lay(&self, layer: usize, bytes: &mut [u8]) {
        let header = &self.headers[layer];
        let next = self.headers.get(layer + 1).map(|next| next.kind);
        let start = self.offsets[layer];
        let after = bytes.len() - start;
        for spec in header.kind.fields().iter().filter(|spec| spec.default != 0) {
            put_bits(bytes, self.bit(layer, spec.bit), spec.bits, spec.default.into());
        }
        let ethertype = match next {
            // The outer of two tags is a service tag.
            Some(LayerKind::Vlan) if self.headers.get(layer + 2).is_some_and(|inner| inner.kind == LayerKind::Vlan) => {
                TPID_SERVICE
            }
            next => next.unwrap_or(LayerKind::Raw).ethertype().unwrap_or(0),
        };
        let protocol = next.unwrap_or(LayerKind::Raw).protocol().unwrap_or(0);
        let own = &mut bytes[start..];
        match header.kind {
            LayerKind::Ethernet => own[12..14].copy_from_slice(&ethertype.to_be_bytes()),
            LayerKind::Vlan => own[2..4].copy_from_slice(&ethertype.to_be_bytes()),
            LayerKind::Mpls => own[2] |= u8::from(next != Some(LayerKind::Mpls)),
            LayerKind::Ipv4 => {
                own[0] = 0x45;
                own[2..4].copy_from_slice(&(after as u16).to_be_bytes());
                own[9] = protocol;
            }
            LayerKind::Ipv6 => {
                own[0] |= 0x60;
                own[4..6].copy_from_slice(&((after - 40) as u16).to_be_bytes());
                own[6] = protocol;
            }
            LayerKind::Udp => own[4..6].copy_from_slice(&(after as u16).to_be_bytes()),
            LayerKind::Tcp => own[12] = 0x50,
            LayerKind::Gre => {
                own[0] = if header_len(header) == 8 { 0x20 } else { 0 };
                own[2..4].copy_from_slice(&ethertype.to_be_bytes());
            }
            LayerKind::Raw => own[..header.raw.len()].copy_from_slice(&header.raw),
            LayerKind::Icmp | LayerKind::Icmpv6 | LayerKind::Vxlan => {}
        }
    }

    fn write(&self, place: &Place) -> Write {
        let first = self.bit(place.layer, place.bit);
        let end = first + place.bits as usize;
        let (first_byte, end_byte) = (first / 8, end.div_ceil(8));
        let shift = end_byte * 8 - end;
        let ones = u64::MAX >> (64 - place.bits);
        Write {
            field: place.field,
            offset: first_byte as u16,
            width: (end_byte - first_byte) as u8,
            shift: shift as u8,
            mask: ones << shift,
        }
    }

    /// The frame's checksums, innermost first.
    fn checksums(&self, bytes: &[u8], writes: &[Write], site: Option<SignatureSite>) -> Vec<Checksum> {
        let mut checksums: Vec<Checksum> = Vec::new();
        for layer in (0..self.headers.len()).rev() {
            let start = self.offsets[layer];
            let below = layer.checked_sub(1).map(|below| (self.headers[below].kind, self.offsets[below]));
            let kind = self.headers[layer].kind;
            let carries_vxlan = self.headers.get(layer + 1).is_some_and(|next| next.kind == LayerKind::Vxlan);
            let (at, end, pseudo) = match (kind, below) {
                (LayerKind::Ipv4, _) => (start + 10, start + 20, None),
                // RFC 7348 §5: over IPv4 the outer UDP checksum is sent as zero.
                (LayerKind::Udp, Some((LayerKind::Ipv4, _))) if carries_vxlan => continue,
                (LayerKind::Udp, Some(below)) => (start + 6, bytes.len(), Some(below)),
                (LayerKind::Tcp, Some(below)) => (start + 16, bytes.len(), Some(below)),
                (LayerKind::Icmp, _) => (start + 2, bytes.len(), None),
                (LayerKind::Icmpv6, Some(below)) => (start + 2, bytes.len(), Some(below)),
                _ => continue,
            };
            let mut sum = Sum { bytes, base: 0, terms: Vec::new() };
            sum.cover(start, end, writes, site, &checksums);
            if let Some((ip, ip_start)) = pseudo {
                let (first, len) = if ip == LayerKind::Ipv4 { (12, 8) } else { (8, 32) };
                sum.cover(ip_start + first, ip_start + first + len, writes, None, &[]);
                sum.base += u64::from(kind.protocol().unwrap_or(0)) + (bytes.len() - start) as u64;
            }
            checksums.push(Checksum {
                offset: at as u16,
                base: fold(sum.base) as u16,
                zero_is_ffff: kind == LayerKind::Udp,
                terms: sum.terms,
            });
        }
        checksums
    }
}

/// A checksum's sum while it is collected.
struct Sum<'a> {
    bytes: &'a [u8],
    base: u64,
    terms: Vec<Term>,
}

impl Sum<'_> {
    /// Adds the bytes `start..end`: constants into the base, everything variable as terms.
    fn cover(&mut self, start: usize, end: usize, writes: &[Write], site: Option<SignatureSite>, inner: &[Checksum]) {
        for pair in self.bytes[start..end].chunks(2) {
            self.base += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
        }
        let mut add = |source, offset: usize, width: usize| {
            if offset >= start && offset + width <= end {
                self.terms.push(Term { source, swap: (offset + width - start) % 2 == 1 });
            }
        };
        for (index, write) in writes.iter().enumerate() {
            add(TermSource::Write(index as u16), usize::from(write.offset), usize::from(write.width));
        }
        if let Some(site) = site {
            let (offset, width) = site.kind.sequence();
            add(TermSource::Sequence, usize::from(site.offset) + offset, width);
            if let Some(offset) = site.kind.stamp() {
                add(TermSource::Stamp, usize::from(site.offset) + offset, 4);
            }
        }
        for (index, checksum) in inner.iter().enumerate() {
            add(TermSource::Checksum(index as u16), usize::from(checksum.offset), 2);
        }
    }
}

/// Stores `value` into `bits` bits from bit `first` (from the most significant bit of byte 0).
fn put_bits(bytes: &mut [u8], first: usize, bits: u32, value: u128) {
    for i in 0..bits as usize {
        let (bit, position) = (value >> (bits as usize - 1 - i) & 1 == 1, first + i);
        let mask = 0x80 >> (position % 8);
        match bit {
            true => bytes[position / 8] |= mask,
            false => bytes[position / 8] &= !mask,
        }
    }
}

/// What varies, in at most 64 bits each: of IPv6 addresses a range varies in the lower half, a list in both.
fn split(values: &Values, bit: i32, bits: u32) -> Vec<(Values, i32, u32)> {
    if matches!(values, Values::Fixed(_)) {
        return Vec::new();
    }
    if bits <= 64 {
        return vec![(values.clone(), bit, bits)];
    }
    let Values::List(list) = values else { return vec![(values.clone(), bit + 64, 64)] };
    let half = |shift: u32| Values::List(list.iter().map(|value| value >> shift & u128::from(u64::MAX)).collect());
    vec![(half(64), bit, 64), (half(0), bit + 64, 64)]
}

fn generator(values: &Values, seed: u64) -> (Generator, u64) {
    match values {
        Values::Fixed(value) => (Generator::List([*value as u64].into()), 1),
        Values::Step { first, step, count } => (Generator::Step { start: *first as u64, step: *step as u64 }, *count),
        Values::List(list) => (Generator::List(list.iter().map(|&value| value as u64).collect()), list.len() as u64),
        Values::Random { low, high, period } => {
            let span = u64::try_from(high - low + 1).unwrap_or(u64::MAX);
            (Generator::Random { seed, low: *low as u64, span }, period.unwrap_or(ENDLESS))
        }
    }
}

/// Distinct 5-tuples of these headers, as far as their periods tell; at least 1.
pub(super) fn flows(headers: &[Header]) -> u64 {
    let tuple = |header: &&Header| header.kind.is_ip() || matches!(header.kind, LayerKind::Udp | LayerKind::Tcp);
    let mut stepped: u128 = 1;
    let mut random: u128 = 1;
    for header in headers.iter().filter(tuple) {
        for name in ["src", "dst", "protocol"] {
            match header.field(name).map(|Vary { values, every, .. }| (values, every)) {
                Some((Values::Step { count, .. }, every)) => stepped = combine(stepped, u128::from(*count), every),
                Some((Values::List(list), every)) => stepped = combine(stepped, list.len() as u128, every),
                Some((Values::Random { low, high, period }, _)) => {
                    let span = (high - low).saturating_add(1);
                    random = random.saturating_mul(period.map_or(span, |period| span.min(u128::from(period))));
                }
                _ => {}
            }
        }
    }
    u64::try_from(stepped.saturating_mul(random)).unwrap_or(u64::MAX)
}

/// Fields in step share their frames (least common multiple); one that waits multiplies.
fn combine(flows: u128, count: u128, every: &Every) -> u128 {
    match every {
        Every::Frames(1) => {
            let (mut a, mut b) = (flows, count);
            while b != 0 {
                (a, b) = (b, a % b);
            }
            (flows / a).saturating_mul(count)
        }
        _ => flows.saturating_mul(count),
    }
}
