//! The Vulkan loader, an instance, and what the validation layer has to say.
//!
//! Owns the loader's library, the instance and the messenger. In: whether to validate. Out: an [`Instance`] and its
//! [`ValidationLog`].
//!
//! Invariants: the loader is opened at run time, so the program starts without one; each [`Instance`] is its own; the
//! log outlives the instance, since messages also come while things are torn down.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ash::{Entry, ext, vk};

use super::error::GpuError;

/// Messages that a log keeps; a broken recording repeats itself thousands of times.
const MESSAGES_MAX: usize = 256;

const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// Locks `mutex` also when a thread panicked with it: what we guard is valid between any two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the validation layer said about one [`super::Gpu`]; a handle that outlives it.
#[derive(Clone, Default)]
pub struct ValidationLog {
    shared: Arc<Mutex<Vec<String>>>,
}

impl ValidationLog {
    /// The messages so far, oldest first; the first 256 are kept.
    pub fn messages(&self) -> Vec<String> {
        lock(&self.shared).clone()
    }
}

fn note(messages: &Mutex<Vec<String>>, message: String) {
    let mut messages = lock(messages);
    if messages.len() < MESSAGES_MAX {
        messages.push(message);
    }
}

impl fmt::Debug for ValidationLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.messages()).finish()
    }
}

/// An instance of Vulkan 1.3, with the validation layer if it was asked for.
pub(super) struct Instance {
    pub(super) raw: ash::Instance,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    pub(super) log: ValidationLog,
    /// The library behind every function pointer: dropped last.
    entry: Entry,
}

impl Instance {
    /// Opens the loader and makes an instance. `FLINT_RT_VALIDATION=1` in the environment asks for validation too.
    ///
    /// # Errors
    /// [`GpuError::LoaderMissing`], [`GpuError::ValidationMissing`], [`GpuError::FeatureMissing`] for a loader older than
    /// Vulkan 1.3, [`GpuError::NoDevice`] when no driver is installed.
    pub(super) fn open(validation: bool) -> Result<Self, GpuError> {
        let is_validated =
            validation || std::env::var_os("FLINT_RT_VALIDATION").is_some_and(|value| value == "1");
        let entry = load_entry("libvulkan.so.1")?;
        check_loader_version(&entry)?;
        let log = ValidationLog::default();
        if is_validated {
            check_layer(&entry)?;
        }

        let application = vk::ApplicationInfo::default()
            .application_name(c"flint-rt")
            .engine_name(c"flint-rt")
            .api_version(vk::API_VERSION_1_3);
        let layers = [VALIDATION_LAYER.as_ptr()];
        let extensions = [ext::debug_utils::NAME.as_ptr(), ext::validation_features::NAME.as_ptr()];
        let enables = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&enables);
        let mut messenger_info = messenger_info(&log);
        let mut info = vk::InstanceCreateInfo::default().application_info(&application);
        if is_validated {
            info = info
                .enabled_layer_names(&layers)
                .enabled_extension_names(&extensions)
                .push_next(&mut features)
                .push_next(&mut messenger_info);
        }
        // SAFETY:
        // - `info` and all that it points to live until the call returns.
        // - The messenger's user pointer is the log's `Arc`, which lives as long as the instance (field `log`).
        let raw = unsafe { entry.create_instance(&info, None) }.map_err(instance_error)?;
        let mut instance = Self { raw, messenger: None, log, entry };
        if is_validated {
            instance.start_messenger()?;
        }
        Ok(instance)
    }

    fn start_messenger(&mut self) -> Result<(), GpuError> {
        let loader = ext::debug_utils::Instance::new(&self.entry, &self.raw);
        let info = messenger_info(&self.log);
        // SAFETY:
        // - VK_EXT_debug_utils is enabled on this instance.
        // - The user pointer lives as long as the instance; the messenger is destroyed before it.
        let messenger = unsafe { loader.create_debug_utils_messenger(&info, None) }
            .map_err(|result| GpuError::of_call("vkCreateDebugUtilsMessengerEXT", result))?;
        self.messenger = Some((loader, messenger));
        Ok(())
    }

    /// The loader's functions.
    pub(super) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Whether the validation layer watches.
    pub(super) fn is_validated(&self) -> bool {
        self.messenger.is_some()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some((loader, messenger)) = self.messenger.take() {
            // SAFETY: made from this instance, which still lives; nobody else holds it.
            unsafe { loader.destroy_debug_utils_messenger(messenger, None) };
        }
        // SAFETY: every device made from it is gone, since `Device` owns this value and destroys itself first.
        unsafe { self.raw.destroy_instance(None) };
    }
}

fn load_entry(library: &str) -> Result<Entry, GpuError> {
    // SAFETY: the Vulkan loader's initialisers have no conditions of ours; the `Entry` keeps the library open for as long
    // as anything made from it lives.
    unsafe { Entry::load_from(library) }
        .map_err(|error| GpuError::LoaderMissing { reason: error.to_string() })
}

fn check_loader_version(entry: &Entry) -> Result<(), GpuError> {
    // SAFETY: no conditions but a loaded entry.
    let version = unsafe { entry.try_enumerate_instance_version() }
        .map_err(|result| GpuError::of_call("vkEnumerateInstanceVersion", result))?
        .unwrap_or(vk::API_VERSION_1_0);
    if version < vk::API_VERSION_1_3 {
        return Err(GpuError::FeatureMissing {
            device: "the Vulkan loader".to_owned(),
            features: vec!["Vulkan 1.3".to_owned()],
        });
    }
    Ok(())
}

fn check_layer(entry: &Entry) -> Result<(), GpuError> {
    // SAFETY: no conditions but a loaded entry.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }
        .map_err(|result| GpuError::of_call("vkEnumerateInstanceLayerProperties", result))?;
    if !layers.iter().any(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION_LAYER)) {
        return Err(GpuError::ValidationMissing {
            reason: "VK_LAYER_KHRONOS_validation is not installed".to_owned(),
        });
    }
    // SAFETY: the layer's name is a C string that outlives the call.
    let extensions = unsafe { entry.enumerate_instance_extension_properties(Some(VALIDATION_LAYER)) }
        .map_err(|result| GpuError::of_call("vkEnumerateInstanceExtensionProperties", result))?;
    if !extensions.iter().any(|known| known.extension_name_as_c_str() == Ok(ext::validation_features::NAME)) {
        return Err(GpuError::ValidationMissing {
            reason: "the installed layer does not offer VK_EXT_validation_features".to_owned(),
        });
    }
    Ok(())
}

fn instance_error(result: vk::Result) -> GpuError {
    match result {
        vk::Result::ERROR_INCOMPATIBLE_DRIVER => {
            GpuError::NoDevice { reason: "the loader found no driver".to_owned() }
        }
        other => GpuError::of_call("vkCreateInstance", other),
    }
}

fn messenger_info(log: &ValidationLog) -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(
            vk::DebugUtilsMessageSeverityFlagsEXT::WARNING | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
        )
        // GENERAL is left out: there the loader reports drivers of other people's hardware that found none.
        .message_type(
            vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION | vk::DebugUtilsMessageTypeFlagsEXT::PERFORMANCE,
        )
        .pfn_user_callback(Some(on_message))
        .user_data(Arc::as_ptr(&log.shared).cast_mut().cast())
}

/// Called by the layer from whichever thread made the faulty call. It must not unwind: it only formats and locks.
unsafe extern "system" fn on_message(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kinds: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer passes valid data, or null, that lives until we return.
    let Some(data) = (unsafe { data.as_ref() }) else { return vk::FALSE };
    let user: *const Mutex<Vec<String>> = user.cast();
    // SAFETY: `messenger_info` put the log's `Arc` content there, and `Instance` keeps it alive.
    let Some(messages) = (unsafe { user.as_ref() }) else { return vk::FALSE };
    // SAFETY: the accessor reads a C string of the layer's, or null, which it turns into `None`.
    let id = unsafe { data.message_id_name_as_c_str() }.map(CStr::to_string_lossy).unwrap_or_default();
    // SAFETY: as above.
    let text = unsafe { data.message_as_c_str() }.map(CStr::to_string_lossy).unwrap_or_default();
    note(messages, format!("{id}: {text}"));
    vk::FALSE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_loader_is_named_with_its_package() {
        let error = load_entry("libvulkan-that-is-not-there.so.1").err().expect("there is no such library");
        assert!(matches!(error, GpuError::LoaderMissing { .. }), "{error:?}");
        assert!(error.to_string().contains("apt install libvulkan1"), "{error}");
    }

    #[test]
    fn a_log_is_bounded() {
        let log = ValidationLog::default();
        for i in 0..2 * MESSAGES_MAX {
            note(&log.shared, i.to_string());
        }
        assert_eq!(log.messages().len(), MESSAGES_MAX);
        assert_eq!(log.messages().first().map(String::as_str), Some("0"));
    }
}
