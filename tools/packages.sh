# Sourced by tools/try and tools/check: installs missing packages by apt, and only missing ones.
# shellcheck shell=bash

missing_packages=()

# need_package PACKAGE TEST...: PACKAGE is wanted where TEST fails.
need_package() {
    local package=$1
    shift
    "$@" || missing_packages+=("$package")
}

# has_program NAME: whether it can be called.
has_program() {
    command -v "$1" >/dev/null
}

# has_library NAME: whether the dynamic linker finds it.
has_library() {
    local linker
    linker=$(command -v ldconfig || echo /sbin/ldconfig)
    # Its whole output is read: a closed pipe would make it fail.
    "$linker" -p 2>/dev/null | grep -cF "$1 " >/dev/null
}

# has_manifest PATTERN: whether such a manifest lies in one of the folders in which the Vulkan loader looks.
has_manifest() {
    local folder
    for folder in /usr/share /usr/local/share /etc "${XDG_DATA_HOME:-$HOME/.local/share}"; do
        compgen -G "$folder/vulkan/$1" >/dev/null && return 0
    done
    return 1
}

has_vulkan_driver() {
    [ -n "${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}" ] || has_manifest 'icd.d/*.json'
}

has_software_driver() {
    has_manifest 'icd.d/lvp_*.json'
}

has_validation_layer() {
    has_manifest 'explicit_layer.d/*khronos_validation*.json'
}

install_packages() {
    [ ${#missing_packages[@]} -eq 0 ] && return 0
    echo "missing: ${missing_packages[*]}" >&2
    if ! command -v apt-get >/dev/null; then
        echo "this system has no apt: install the Vulkan loader and a Vulkan driver (Mesa's, or your GPU's) by hand" >&2
        exit 1
    fi
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "neither root nor sudo: have somebody run 'apt-get install ${missing_packages[*]}'" >&2
            exit 1
        fi
        as_root=(sudo)
    fi
    "${as_root[@]}" apt-get update -qq >&2
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing_packages[@]}" >&2
}
