# The target dtensor_header_checks compiles every public header alone.
#
# Most of the compile time is for LibTorch's Tensor.h. It is precompiled for
# headers that include it directly or through another header of ours. All other
# missing includes are still found.

# Sets `result` to true if `header` includes Tensor.h, directly or not.
function(dtensor_includes_tensor header result)
  set(answer dtensor_includes_tensor_${header})
  get_property(known GLOBAL PROPERTY ${answer} SET)
  if(NOT known)
    set(found OFF)
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} lines REGEX "^#include <")
    foreach(line ${lines})
      if(line MATCHES "<ATen/core/Tensor\\.h>")
        set(found ON)
      elseif(line MATCHES "<(dtensor/[^>]+)>")
        dtensor_includes_tensor(${CMAKE_MATCH_1} one_of_ours)
        if(one_of_ours)
          set(found ON)
        endif()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY ${answer} ${found})
  endif()
  get_property(found GLOBAL PROPERTY ${answer})
  set(${result} ${found} PARENT_SCOPE)
endfunction()

get_property(headers GLOBAL PROPERTY dtensor_public_headers)
set(sources)
set(plain)
foreach(header ${headers})
  string(MAKE_C_IDENTIFIER ${header} name)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include <${header}> // NOLINT\n")
  list(APPEND sources ${source})
  dtensor_includes_tensor(${header} has_tensor)
  if(NOT has_tensor)
    list(APPEND plain ${source})
  endif()
endforeach()
set_source_files_properties(${plain} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)

add_library(dtensor_header_checks OBJECT ${sources})
target_link_libraries(dtensor_header_checks PRIVATE
  dtensor::dtensor dtensor::testing)
target_precompile_headers(dtensor_header_checks PRIVATE <ATen/core/Tensor.h>)
target_compile_options(dtensor_header_checks PRIVATE
  ${dtensor_precompiled_flags})
dtensor_warnings(dtensor_header_checks)
set_target_properties(dtensor_header_checks PROPERTIES UNITY_BUILD OFF)
