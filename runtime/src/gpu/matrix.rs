//! Cooperative matrices: what a device offers of them, and which of it the kernels take. Choice is pure.
//!
//! In: the shapes that a driver lists (`VK_KHR_cooperative_matrix`). Out: a [`MatrixShape`], or none.
//!
//! Invariant: what is taken is f16 times f16 into f32, one subgroup a matrix, without saturation.

use ash::{khr, vk};

/// Rows, columns and depth of the product that one subgroup computes at once: `m x k` times `k x n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixShape {
    /// Rows of the result.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Depth.
    pub k: u32,
}

/// What the kernels were written for.
const WANTED: MatrixShape = MatrixShape { m: 16, n: 16, k: 16 };

/// Depth of a block of weights: whatever depth a matrix has must divide it.
const BLOCK: u32 = 32;

/// The shape to take of those that are offered: 16 x 16 x 16, else the first whose sides divide a block of weights.
pub(super) fn choose(offered: &[vk::CooperativeMatrixPropertiesKHR<'_>]) -> Option<MatrixShape> {
    let (half, float) = (vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32);
    let shapes: Vec<MatrixShape> = offered
        .iter()
        .filter(|of| of.scope == vk::ScopeKHR::SUBGROUP && of.saturating_accumulation == vk::FALSE)
        .filter(|of| [of.a_type, of.b_type, of.c_type, of.result_type] == [half, half, float, float])
        .map(|of| MatrixShape { m: of.m_size, n: of.n_size, k: of.k_size })
        .filter(|shape| {
            [shape.m, shape.n, shape.k].iter().all(|&side| side > 0 && BLOCK.is_multiple_of(side))
        })
        .collect();
    shapes.iter().copied().find(|&shape| shape == WANTED).or_else(|| shapes.first().copied())
}

/// What `physical`, which speaks Vulkan 1.3 and offers the extension, can do for the kernels; `None` where it lacks a feature that
/// they need beside it, f16 arithmetic or the Vulkan memory model with device scope, or lists no shape for them.
pub(super) fn read(
    entry: &ash::Entry,
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
) -> Option<MatrixShape> {
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut matrix = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut v12).push_next(&mut matrix);
    // SAFETY: the device speaks Vulkan 1.3 and offers the extension, so it knows every struct of the chain.
    unsafe { instance.get_physical_device_features2(physical, &mut features) };
    let mut stages = vk::PhysicalDeviceCooperativeMatrixPropertiesKHR::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut stages);
    // SAFETY: as above.
    unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
    // Where the memory model is on, kernels whose last workgroup goes on with what the others wrote need its scope, too.
    let has_features = [
        matrix.cooperative_matrix,
        v12.shader_float16,
        v12.vulkan_memory_model,
        v12.vulkan_memory_model_device_scope,
    ]
    .iter()
    .all(|&is| is == vk::TRUE);
    if !has_features || !stages.cooperative_matrix_supported_stages.contains(vk::ShaderStageFlags::COMPUTE) {
        return None;
    }
    let loader = khr::cooperative_matrix::Instance::new(entry, instance);
    // SAFETY: `physical` comes from this instance and offers the extension. A driver that cannot answer offers nothing.
    let offered = unsafe { loader.get_physical_device_cooperative_matrix_properties(physical) };
    choose(&offered.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(sides: [u32; 3], result: vk::ComponentTypeKHR) -> vk::CooperativeMatrixPropertiesKHR<'static> {
        let [m_size, n_size, k_size] = sides;
        let half = vk::ComponentTypeKHR::FLOAT16;
        vk::CooperativeMatrixPropertiesKHR {
            m_size,
            n_size,
            k_size,
            a_type: half,
            b_type: half,
            c_type: result,
            result_type: result,
            scope: vk::ScopeKHR::SUBGROUP,
            ..Default::default()
        }
    }

    #[test]
    fn f16_into_f32_is_taken_and_sixteen_before_others() {
        let (half, float) = (vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32);
        let eight = offer([8, 8, 8], float);
        let sixteen = offer([16, 16, 16], float);
        let taken = |offered: &[_]| choose(offered).map(|shape| [shape.m, shape.n, shape.k]);
        assert_eq!(taken(&[offer([16, 16, 16], half), eight, sixteen]), Some([16; 3]));
        assert_eq!(taken(&[offer([16, 8, 16], half), eight]), Some([8; 3]));
        assert_eq!(taken(&[offer([16, 16, 16], half)]), None, "sums of f16 are not exact enough");
        assert_eq!(taken(&[offer([24, 16, 16], float)]), None, "a block is no multiple of 24");
        let device = vk::CooperativeMatrixPropertiesKHR { scope: vk::ScopeKHR::WORKGROUP, ..sixteen };
        let saturating = vk::CooperativeMatrixPropertiesKHR { saturating_accumulation: vk::TRUE, ..sixteen };
        assert_eq!(taken(&[device, saturating]), None);
    }
}
