//! Which queues of a device do what. Pure but for [`CopyQueue::or_environment`].
//!
//! - Owns: nothing. In: the device's queue families. Out: [`Queues`]: where kernels run, and where copies run beside them.
//! - Invariants: kernels run on one queue. Copies have another where there is one: of a family that only copies (on discrete devices
//!   an engine of its own), else a second queue of the kernels' family, else they share it.

use std::ffi::OsStr;

use ash::vk;

use super::GpuError;

const VARIABLE: &str = "FLINT_RT_COPY_QUEUE";

/// Whether copies between host memory and slots run on a queue of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopyQueue {
    /// Where the device has one.
    #[default]
    Auto,
    /// Never.
    Shared,
    /// On a timeline of their own in any case, over the kernels' queue where the device has no other: what orders the two is then in
    /// use on every device, a software device included.
    Split,
}

impl CopyQueue {
    /// What `FLINT_RT_COPY_QUEUE` in the environment says, in place of `self`: `auto`, `shared` or `split`.
    ///
    /// # Errors
    /// [`GpuError::InvalidVariable`] when it says something else.
    pub(super) fn or_environment(self) -> Result<Self, GpuError> {
        self.or(std::env::var_os(VARIABLE).as_deref())
    }

    /// As [`Self::or_environment`], of the variable's value; an empty one counts as not set.
    fn or(self, value: Option<&OsStr>) -> Result<Self, GpuError> {
        match value.map(|value| (value, value.to_str())) {
            None | Some((_, Some(""))) => Ok(self),
            Some((_, Some("auto"))) => Ok(Self::Auto),
            Some((_, Some("shared"))) => Ok(Self::Shared),
            Some((_, Some("split"))) => Ok(Self::Split),
            Some((value, _)) => Err(GpuError::InvalidVariable {
                name: VARIABLE,
                value: value.to_string_lossy().into_owned(),
                wanted: "`auto`, `shared` or `split`",
            }),
        }
    }
}

/// A timeline: what its tickets count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum QueueKind {
    /// Kernels, and all that has no other place.
    Kernels,
    /// Copies beside them.
    Copies,
}

/// A queue of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) family: u32,
    pub(super) index: u32,
    /// Of its clock; 0 for none.
    pub(super) timestamp_bits: u32,
}

/// Where work goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Queues {
    pub(super) kernels: Lane,
    /// `None` where copies share the kernels' queue.
    pub(super) copies: Option<Lane>,
}

/// The queues to use of a device with these families; `None` without compute.
///
/// For kernels a family without graphics, which a desktop leaves alone, else any with compute.
pub(super) fn choose(families: &[vk::QueueFamilyProperties]) -> Option<Queues> {
    let (compute, graphics) = (vk::QueueFlags::COMPUTE, vk::QueueFlags::GRAPHICS);
    // Families of engines for video and for optical flow copy, too, and have other work.
    let video = vk::QueueFlags::VIDEO_DECODE_KHR | vk::QueueFlags::VIDEO_ENCODE_KHR;
    let others = compute | graphics | video | vk::QueueFlags::OPTICAL_FLOW_NV;
    let with = |flags: vk::QueueFlags, without: vk::QueueFlags| {
        let found = families.iter().position(|family| {
            family.queue_count > 0
                && family.queue_flags.contains(flags)
                && !family.queue_flags.intersects(without)
        })?;
        let timestamp_bits = families[found].timestamp_valid_bits;
        Some(Lane { family: u32::try_from(found).ok()?, index: 0, timestamp_bits })
    };
    let kernels = with(compute, graphics).or_else(|| with(compute, vk::QueueFlags::empty()))?;
    let second = (families[kernels.family as usize].queue_count > 1).then_some(Lane { index: 1, ..kernels });
    Some(Queues { kernels, copies: with(vk::QueueFlags::TRANSFER, others).or(second) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(flags: vk::QueueFlags, queue_count: u32) -> vk::QueueFamilyProperties {
        let queue_flags = flags | vk::QueueFlags::TRANSFER;
        vk::QueueFamilyProperties { queue_flags, queue_count, timestamp_valid_bits: 64, ..Default::default() }
    }

    const ALL: vk::QueueFlags =
        vk::QueueFlags::from_raw(vk::QueueFlags::GRAPHICS.as_raw() | vk::QueueFlags::COMPUTE.as_raw());
    const COPIES: vk::QueueFlags = vk::QueueFlags::empty();

    /// Family and index of a queue.
    type Place = (u32, u32);

    fn chosen(families: &[vk::QueueFamilyProperties]) -> Option<(Place, Option<Place>)> {
        let place = |lane: Lane| (lane.family, lane.index);
        choose(families).map(|queues| (place(queues.kernels), queues.copies.map(place)))
    }

    #[test]
    fn the_environment_goes_before_and_what_it_cannot_mean_is_said() {
        let say = |value: &str| CopyQueue::Split.or(Some(OsStr::new(value)));
        assert_eq!(say("auto").ok(), Some(CopyQueue::Auto));
        assert_eq!(say("shared").ok(), Some(CopyQueue::Shared));
        assert_eq!(say("").ok(), Some(CopyQueue::Split), "as if it were not set");
        assert_eq!(CopyQueue::Split.or(None).ok(), Some(CopyQueue::Split));
        let error = say("share").expect_err("there is no such word").to_string();
        assert!(error.contains("FLINT_RT_COPY_QUEUE") && error.contains("\"share\""), "{error}");
    }

    #[test]
    fn copies_take_the_family_that_does_nothing_else() {
        // As a discrete device has them: all, copies, compute, video.
        let families = [
            family(ALL, 16),
            family(vk::QueueFlags::SPARSE_BINDING, 2),
            family(vk::QueueFlags::COMPUTE, 8),
            family(vk::QueueFlags::VIDEO_DECODE_KHR, 1),
        ];
        assert_eq!(chosen(&families), Some(((2, 0), Some((1, 0)))));
    }

    #[test]
    fn else_a_second_queue_else_the_same_one() {
        assert_eq!(chosen(&[family(ALL, 1)]), Some(((0, 0), None)), "a software device");
        assert_eq!(chosen(&[family(ALL, 2)]), Some(((0, 0), Some((0, 1)))));
        for other in [vk::QueueFlags::VIDEO_ENCODE_KHR, vk::QueueFlags::OPTICAL_FLOW_NV] {
            let families = [family(ALL, 1), family(other, 1)];
            assert_eq!(chosen(&families), Some(((0, 0), None)), "an engine of {other:?} has other work");
            let families = [family(ALL, 1), family(other, 1), family(COPIES, 1)];
            assert_eq!(chosen(&families), Some(((0, 0), Some((2, 0)))), "{other:?} lies before the copies");
        }
        let families = [family(ALL, 1), family(vk::QueueFlags::COMPUTE, 4)];
        assert_eq!(chosen(&families), Some(((1, 0), Some((1, 1)))));
        assert_eq!(
            chosen(&[family(ALL, 1), family(COPIES, 0)]),
            Some(((0, 0), None)),
            "a family without queues"
        );
    }

    #[test]
    fn without_compute_there_is_nothing_to_use() {
        assert_eq!(chosen(&[family(vk::QueueFlags::GRAPHICS, 1), family(COPIES, 2)]), None);
    }
}
