# Libraries of examples/llama and examples/embed, which are not built without
# them. PCRE2 and utf8proc classify the letters of all scripts, for splitting
# text into words.
find_library(dtensor_pcre2 pcre2-8)
find_path(dtensor_pcre2_headers pcre2.h)
find_library(dtensor_utf8proc utf8proc)
find_path(dtensor_utf8proc_headers utf8proc.h)
mark_as_advanced(
  dtensor_pcre2 dtensor_pcre2_headers
  dtensor_utf8proc dtensor_utf8proc_headers)
set(dtensor_with_models OFF)
if(dtensor_pcre2 AND dtensor_pcre2_headers
    AND dtensor_utf8proc AND dtensor_utf8proc_headers)
  set(dtensor_with_models ON)
endif()

# dtensor_reads_models(<target>): for targets with sources of these examples.
function(dtensor_reads_models target)
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY)
  target_link_libraries(${target} PRIVATE
    ${dtensor_pcre2} ${dtensor_utf8proc} nlohmann_json::nlohmann_json)
  target_include_directories(${target} PRIVATE
    ${dtensor_pcre2_headers} ${dtensor_utf8proc_headers})
endfunction()
