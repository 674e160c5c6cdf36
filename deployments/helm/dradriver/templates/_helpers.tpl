{{- define "dradriver.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "dradriver.fullname" -}}
{{- $name := include "dradriver.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "dradriver.selectorLabels" -}}
app.kubernetes.io/name: {{ include "dradriver.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dradriver.labels" -}}
{{ include "dradriver.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "dradriver.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "dradriver.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: is needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "dradriver.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The drivers as a JSON list of {name, backends}: those of the configuration, or the daemon's own defaults. */}}
{{- define "dradriver.drivers" -}}
{{- $drivers := .Values.config.drivers -}}
{{- if not $drivers -}}
{{- $kinds := list "cpu" "memory" -}}
{{- if .Values.config.fake -}}
{{- $kinds = list "gpu" "nic" "cpu" "memory" -}}
{{- end -}}
{{- $drivers = list -}}
{{- range $kinds -}}
{{- $drivers = append $drivers (dict "name" (printf "%s.dradriver.io" .) "backends" (list .)) -}}
{{- end -}}
{{- end -}}
{{- toJson $drivers -}}
{{- end -}}

{{/* The names of the drivers, as a JSON list. */}}
{{- define "dradriver.driverNames" -}}
{{- $names := list -}}
{{- range include "dradriver.drivers" . | fromJsonArray -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* The daemon's configuration, with what the chart knows better. */}}
{{- define "dradriver.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "drivers" (include "dradriver.drivers" . | fromJsonArray) -}}
{{- $_ := set $config "kubeletRoot" .Values.kubeletRoot -}}
{{- $_ := set $config "cdi" .Values.cdiDirectory -}}
{{- $_ := set $config "kubernetes" (default dict .Values.config.kubernetes) -}}
{{- $access := include "dradriver.access" . | fromJson -}}
{{- if $access.hostRoot -}}
{{- $_ := set $config "hostRoot" "/host" -}}
{{- end -}}
{{- if $access.mpsKeeper -}}
{{- $backends := default dict $config.backends -}}
{{- $gpu := merge (default dict $backends.gpu) (dict "mpsLauncher" "pod") -}}
{{- $_ := set $config "backends" (merge (dict "gpu" $gpu) $backends) -}}
{{- end -}}
{{- if .Values.metrics.enabled -}}
{{- $_ := set $config "metrics" (dict "address" (printf ":%d" (int .Values.metrics.port))) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* What the backends in use need of the host together, as JSON. */}}
{{- define "dradriver.access" -}}
{{- $fake := list -}}
{{- if .Values.config.fake -}}
{{- $fake = list "gpu" "nic" "cpu" "memory" -}}
{{- end -}}
{{- $privileged := false -}}
{{- $hostNetwork := false -}}
{{- $hostRoot := false -}}
{{- $mpsKeeper := false -}}
{{- $runtime := default dict .Values.config.nri -}}
{{- $nri := eq (toString $runtime.enabled) "true" -}}
{{- $capabilities := list -}}
{{- $paths := dict -}}
{{- range include "dradriver.drivers" . | fromJsonArray -}}
{{- range .backends -}}
{{- if not (has . $fake) -}}
{{- $needs := default dict (get $.Values.access .) -}}
{{- $privileged = or $privileged (default false $needs.privileged) -}}
{{- $hostNetwork = or $hostNetwork (default false $needs.hostNetwork) -}}
{{- $hostRoot = or $hostRoot (default false $needs.hostRoot) -}}
{{- $mpsKeeper = or $mpsKeeper (default false $needs.mpsKeeper) -}}
{{- $nri = or $nri (default false $needs.nri) -}}
{{- $capabilities = concat $capabilities (default list $needs.capabilities) -}}
{{- range $needs.paths -}}
{{- $_ := set $paths .path . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $nri (ne (toString $runtime.enabled) "false") -}}
{{- $directory := dir (default "/var/run/nri/nri.sock" $runtime.socket) -}}
{{- if not (hasKey $paths $directory) -}}
{{- $_ := set $paths $directory (dict "path" $directory "type" "DirectoryOrCreate") -}}
{{- end -}}
{{- end -}}
{{- $sorted := list -}}
{{- range keys $paths | sortAlpha -}}
{{- $sorted = append $sorted (get $paths .) -}}
{{- end -}}
{{- dict "privileged" $privileged "hostNetwork" $hostNetwork "hostRoot" (and $hostRoot (not .Values.config.fake)) "mpsKeeper" $mpsKeeper "capabilities" ($capabilities | uniq | sortAlpha) "paths" $sorted | toJson -}}
{{- end -}}

{{/*
The container's security context. Root, because the kubelet's directories are root's alone. The API takes privileged and
SYS_ADMIN for privilege escalation allowed.
*/}}
{{- define "dradriver.securityContext" -}}
{{- $access := include "dradriver.access" . | fromJson -}}
{{- $context := dict "runAsUser" 0 "runAsGroup" 0 "readOnlyRootFilesystem" true -}}
{{- if $access.privileged -}}
{{- $_ := set $context "privileged" true -}}
{{- else -}}
{{- $capabilities := dict "drop" (list "ALL") -}}
{{- if $access.capabilities -}}
{{- $_ := set $capabilities "add" $access.capabilities -}}
{{- end -}}
{{- $_ := set $context "capabilities" $capabilities -}}
{{- if not (has "SYS_ADMIN" $access.capabilities) -}}
{{- $_ := set $context "allowPrivilegeEscalation" false -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite $context (deepCopy .Values.securityContext) | toYaml -}}
{{- end -}}

{{/* What tells pods of the keeper of MPS control daemons from those of the daemon. */}}
{{- define "dradriver.mpsKeeper.selectorLabels" -}}
app.kubernetes.io/name: {{ printf "%s-mps-keeper" (include "dradriver.name" . | trunc 52 | trimSuffix "-") }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dradriver.mpsKeeper.fullname" -}}
{{- printf "%s-mps-keeper" (include "dradriver.fullname" . | trunc 52 | trimSuffix "-") -}}
{{- end -}}

{{/* The options of the backend gpu that the keeper goes by too, as JSON. */}}
{{- define "dradriver.mpsKeeper.options" -}}
{{- $gpu := default dict (default dict .Values.config.backends).gpu -}}
{{- dict "driverRoot" (default "/" $gpu.driverRoot) "runDirectory" (default "/run/dradriver-gpu" $gpu.runDirectory) | toJson -}}
{{- end -}}

{{/* The keeper's command, with more words: (list context words). */}}
{{- define "dradriver.mpsKeeper.command" -}}
{{- $options := include "dradriver.mpsKeeper.options" (index . 0) | fromJson -}}
- python
- -m
- dradriver_gpu.mps
{{- range index . 1 }}
- {{ . }}
{{- end }}
- --host-root=/host
- --driver-root={{ $options.driverRoot }}
- --run-directory={{ $options.runDirectory }}
{{- end -}}

{{- define "dradriver.podSecurityContext" -}}
{{- $context := dict "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- mergeOverwrite $context (deepCopy .Values.podSecurityContext) | toYaml -}}
{{- end -}}

{{/* A probe: (list context times flags). */}}
{{- define "dradriver.probe" -}}
{{- $context := index . 0 -}}
exec:
  command:
  - python
  - -m
  - dradriver.kubelet.probe
  - --root={{ $context.Values.kubeletRoot }}
  {{- range index . 2 }}
  - {{ . }}
  {{- end }}
  {{- range include "dradriver.driverNames" $context | fromJsonArray }}
  - {{ . }}
  {{- end }}
{{ index . 1 | toYaml }}
{{- end -}}
